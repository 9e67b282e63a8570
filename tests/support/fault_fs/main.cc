// kvtier-fault-fs BACKING MOUNTPOINT: shows the folder BACKING at MOUNTPOINT and lets go wrong what it is
// told to, by lines on stdin (rules.h), each answered by one on stdout; also "volatile", from when on what is
// not synced can be lost, and "powerloss", which loses it. Says "ready" first. The end of stdin unmounts: no
// mount outlives its test.
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <fcntl.h>
#include <fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "tests/support/fault_fs/rules.h"
#include "tests/support/fault_fs/volatile_cache.h"

namespace kvtier::fault_fs {
namespace {

constexpr unsigned kMaxThreads = 128;  // each operation that hangs has one
constexpr uint64_t kSectorBytes = 512;

struct OpenFile {
  int fd;
  std::string path;
  bool direct;
};

struct Shown {
  std::string backing;
  Rules rules;
  VolatileCache cache;
  std::mutex mutex;
  std::set<OpenFile*> open;  ///< their paths change by renames
};

Shown& Fs() {
  return *static_cast<Shown*>(fuse_get_context()->private_data);
}
std::string Backing(const char* path) {
  return Fs().backing + path;
}
int Answer(int returned) {
  return returned < 0 ? -errno : returned;
}
OpenFile& FileOf(fuse_file_info* info) {
  return *reinterpret_cast<OpenFile*>(info->fh);
}
Effect ApplyTo(Op op, fuse_file_info* info) {
  const OpenFile& file = FileOf(info);
  std::string path;
  {
    std::lock_guard lock(Fs().mutex);
    path = file.path;
  }
  return Fs().rules.Apply(op, path, file.direct);
}

void* Init(fuse_conn_info* connection, fuse_config* config) {
  connection->max_background = kMaxThreads;
  connection->max_write = 1 << 20;
  config->nullpath_ok = 1;
  config->hard_remove = 1;
  config->use_ino = 1;
  config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
  return fuse_get_context()->private_data;
}

int GetAttributes(const char* path, struct stat* out, fuse_file_info* info) {
  if (info != nullptr) return Answer(::fstat(FileOf(info).fd, out));
  if (const Effect effect = Fs().rules.Apply(Op::kOther, path, false); effect.error) return -effect.error;
  return Answer(::lstat(Backing(path).c_str(), out));
}
/// Has no path: those of open files and folders are not asked for.
int ReadFolder(const char*, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info* info,
               fuse_readdir_flags) {
  if (const Effect effect = ApplyTo(Op::kOther, info); effect.error) return -effect.error;
  DIR* folder = ::fdopendir(::openat(FileOf(info).fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder == nullptr) return -errno;
  while (const dirent* entry = ::readdir(folder))
    fill(buffer, entry->d_name, nullptr, 0, fuse_fill_dir_flags{});
  ::closedir(folder);
  return 0;
}
/// Folders: nothing to open, but their syncs count.
int OpenFolder(const char* path, fuse_file_info* info) {
  const int fd = ::open(Backing(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  info->fh = reinterpret_cast<uint64_t>(new OpenFile{fd, path, false});
  return 0;
}
int CloseFolder(const char*, fuse_file_info* info) {
  ::close(FileOf(info).fd);
  delete &FileOf(info);
  return 0;
}

int OpenAny(Op op, const char* path, mode_t mode, fuse_file_info* info) {
  const bool direct = (info->flags & O_DIRECT) != 0;
  if (const Effect effect = Fs().rules.Apply(op, path, direct); effect.error) return -effect.error;
  // This program's own buffers are not aligned.
  const int flags = info->flags & ~(O_DIRECT | O_APPEND);
  const int fd = ::open(Backing(path).c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) return -errno;
  auto* file = new OpenFile{fd, path, direct};
  {
    std::lock_guard lock(Fs().mutex);
    Fs().open.insert(file);
  }
  info->fh = reinterpret_cast<uint64_t>(file);
  info->direct_io = 1;  // every read and write comes here
  return 0;
}
int Open(const char* path, fuse_file_info* info) {
  return OpenAny(Op::kOpen, path, 0, info);
}
int Create(const char* path, mode_t mode, fuse_file_info* info) {
  return OpenAny(Op::kCreate, path, mode, info);
}
int Close(const char*, fuse_file_info* info) {
  OpenFile* file = &FileOf(info);
  {
    std::lock_guard lock(Fs().mutex);
    Fs().open.erase(file);
  }
  ::close(file->fd);
  delete file;
  return 0;
}

size_t Wanted(size_t bytes, const Effect& effect) {
  return effect.halve ? bytes / 2 / kSectorBytes * kSectorBytes : bytes;
}
int Read(const char*, char* buffer, size_t bytes, off_t offset, fuse_file_info* info) {
  const Effect effect = ApplyTo(Op::kRead, info);
  if (effect.error) return -effect.error;
  const ssize_t got = ::pread(FileOf(info).fd, buffer, Wanted(bytes, effect), offset);
  if (got > 0 && effect.flip) {
    const uint64_t bit = effect.random % (static_cast<uint64_t>(got) * 8);
    buffer[bit / 8] = static_cast<char>(buffer[bit / 8] ^ (1 << (bit % 8)));
  }
  return Answer(static_cast<int>(got));
}
int Write(const char*, const char* bytes, size_t count, off_t offset, fuse_file_info* info) {
  const Effect effect = ApplyTo(Op::kWrite, info);
  if (effect.error) return -effect.error;
  const size_t wanted = Wanted(count, effect);
  Fs().cache.BeforeWrite(FileOf(info).fd, static_cast<uint64_t>(offset), wanted);
  return Answer(static_cast<int>(::pwrite(FileOf(info).fd, bytes, wanted, offset)));
}
int Sync(const char*, int data_only, fuse_file_info* info) {
  const Effect effect = ApplyTo(Op::kSync, info);
  const int fd = FileOf(info).fd;
  if (effect.error) {
    Fs().cache.OnSyncFailed(fd);
    return -effect.error;
  }
  if (effect.lose_sync) return 0;
  Fs().cache.OnSync(fd);
  return Answer(data_only ? ::fdatasync(fd) : ::fsync(fd));
}
int Allocate(const char*, int mode, off_t offset, off_t bytes, fuse_file_info* info) {
  if (const Effect effect = ApplyTo(Op::kAllocate, info); effect.error) return -effect.error;
  return Answer(::fallocate(FileOf(info).fd, mode, offset, bytes));
}
int Truncate(const char* path, off_t bytes, fuse_file_info* info) {
  if (info == nullptr) return Answer(::truncate(Backing(path).c_str(), bytes));
  if (const Effect effect = ApplyTo(Op::kAllocate, info); effect.error) return -effect.error;
  return Answer(::ftruncate(FileOf(info).fd, bytes));
}

int Rename(const char* from, const char* to, unsigned flags) {
  if (const Effect effect = Fs().rules.Apply(Op::kRename, from, false); effect.error) return -effect.error;
  const int returned = ::renameat2(AT_FDCWD, Backing(from).c_str(), AT_FDCWD, Backing(to).c_str(), flags);
  if (returned != 0) return -errno;
  std::lock_guard lock(Fs().mutex);
  for (OpenFile* file : Fs().open) {
    if (file->path == from) file->path = to;
  }
  return 0;
}
int Unlink(const char* path) {
  if (const Effect effect = Fs().rules.Apply(Op::kUnlink, path, false); effect.error) return -effect.error;
  return Answer(::unlink(Backing(path).c_str()));
}
int MakeFolder(const char* path, mode_t mode) {
  if (const Effect effect = Fs().rules.Apply(Op::kOther, path, false); effect.error) return -effect.error;
  return Answer(::mkdir(Backing(path).c_str(), mode));
}
int RemoveFolder(const char* path) {
  return Answer(::rmdir(Backing(path).c_str()));
}
int Space(const char*, struct statvfs* out) {
  return Answer(::statvfs(Backing("/").c_str(), out));
}
int ChangeMode(const char* path, mode_t mode, fuse_file_info* info) {
  return Answer(info != nullptr ? ::fchmod(FileOf(info).fd, mode) : ::chmod(Backing(path).c_str(), mode));
}
int SetTimes(const char* path, const timespec times[2], fuse_file_info* info) {
  return Answer(info != nullptr ? ::futimens(FileOf(info).fd, times)
                                : ::utimensat(AT_FDCWD, Backing(path).c_str(), times, 0));
}

fuse_operations Operations() {
  fuse_operations all{};
  all.init = Init;
  all.getattr = GetAttributes;
  all.readdir = ReadFolder;
  all.opendir = OpenFolder;
  all.releasedir = CloseFolder;
  all.fsyncdir = Sync;
  all.open = Open;
  all.create = Create;
  all.release = Close;
  all.read = Read;
  all.write = Write;
  all.fsync = Sync;
  all.fallocate = Allocate;
  all.truncate = Truncate;
  all.rename = Rename;
  all.unlink = Unlink;
  all.mkdir = MakeFolder;
  all.rmdir = RemoveFolder;
  all.statfs = Space;
  all.chmod = ChangeMode;
  all.utimens = SetTimes;
  return all;
}

void ObeyCommands(Shown& shown, const std::string& mount_point) {
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "volatile") {
      shown.cache.Start();
      std::cout << "ok" << std::endl;
    } else if (line == "powerloss") {
      shown.cache.LosePower();
      std::cout << "ok" << std::endl;
    } else {
      std::cout << shown.rules.Command(line).value_or("error: " + line) << std::endl;
    }
  }
  shown.rules.Command("clear");
  ::umount2(mount_point.c_str(), MNT_DETACH);
  ::_exit(0);  // operations of a mount that is busy may never end
}

int Serve(const std::string& backing, const std::string& mount_point) {
  Shown shown;
  shown.backing = backing;
  char program[] = "kvtier-fault-fs";
  char option[] = "-ofsname=kvtier-fault-fs,subtype=kvtier-fault-fs";
  char* arguments[] = {program, option, nullptr};
  fuse_args args = FUSE_ARGS_INIT(2, arguments);
  const fuse_operations operations = Operations();
  fuse* fs = fuse_new(&args, &operations, sizeof(operations), &shown);
  if (fs == nullptr || fuse_mount(fs, mount_point.c_str()) != 0) {
    std::cout << "error: cannot mount" << std::endl;
    return 1;
  }
  std::thread(ObeyCommands, std::ref(shown), mount_point).detach();
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(config, 0);
  fuse_loop_cfg_set_max_threads(config, kMaxThreads);
  fuse_loop_cfg_set_idle_threads(config, 16);
  fuse_loop_mt(fs, config);
  ::_exit(0);
}

}  // namespace
}  // namespace kvtier::fault_fs

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s BACKING MOUNTPOINT\n", argv[0]);
    return 2;
  }
  return kvtier::fault_fs::Serve(argv[1], argv[2]);
}
