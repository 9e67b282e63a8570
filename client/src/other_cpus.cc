#include "client/src/other_cpus.h"

#include <pthread.h>

namespace kvtier::client {

void OtherCpus::Leave(std::span<std::thread> threads, int cpu) {
  if (threads.empty() || cpu < 0 || cpu >= CPU_SETSIZE || cpu == left_cpu_) return;
  cpu_set_t now;
  if (::pthread_getaffinity_np(threads.front().native_handle(), sizeof now, &now) != 0) return;
  if (!CPU_EQUAL(&now, &given_)) allowed_ = now;
  cpu_set_t others = allowed_;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0) return;
  left_cpu_ = cpu;
  given_ = others;
  for (std::thread& thread : threads)
    ::pthread_setaffinity_np(thread.native_handle(), sizeof others, &others);
}

}  // namespace kvtier::client
