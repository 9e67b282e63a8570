// Writes what kvtier_fuzz_image begins with: real images, behind a prologue that chooses the destination.
//   kvtier_fuzz_seeds FOLDER
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/fuzz/inputs.h"
#include "tests/fuzz/real_images.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: kvtier_fuzz_seeds FOLDER\n");
    return 2;
  }
  const auto images = kvtier::RealImages();
  if (!images.ok()) {
    std::fprintf(stderr, "%s\n", images.status().ToString().c_str());
    return 1;
  }
  int number = 0;
  for (const std::vector<std::byte>& image : *images) {
    std::ofstream file(std::string(argv[1]) + "/image" + std::to_string(number), std::ios::binary);
    for (size_t i = 0; i < kvtier::kImagePrologueBytes; ++i) file.put(static_cast<char>(number));
    file.write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
    if (!file) {
      std::fprintf(stderr, "%s: cannot write\n", argv[1]);
      return 1;
    }
    ++number;
  }
  return 0;
}
