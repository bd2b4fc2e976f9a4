// SPDX-License-Identifier: Apache-2.0
// Memory that the ranks of a host share. Local rank 0 makes a sealed memfd and sends its descriptor
// to the others, which check its size and seals and map it. Memory can also be offered under
// /proc/PID/fd, for ranks that cannot exchange anything at that time.
#include "backends/shm/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "backends/shm/memory/descriptor_mail.h"
#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::shm {
namespace {

constexpr const char* kMemoryGoal =
    "cannot share memory with the other ranks of its host (RONDE_CPU_BACKEND=mpi, or fabric where "
    "there is no MPI, does without)";
constexpr const char* kDescriptorGoal =
    "cannot pass file descriptors to the other ranks of its host";

Error failure_of(const char* call) {
  return Error(std::string(call) + ": " + errno_text(errno));
}

/// Seals keep the memory at its size: a peer that cut it would kill the others by SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// Beyond the limit, ftruncate would not only fail but end the process by a signal.
void check_file_limit(std::size_t bytes) {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) throw failure_of("getrlimit");
  if (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return;
  throw Error(std::to_string(bytes) +
              " bytes of shared memory are more than this process may put " + "into a file, " +
              std::to_string(limit.rlim_cur) + " (ulimit -f)");
}

UniqueFd create_memory(std::size_t bytes) {
  check_file_limit(bytes);
  UniqueFd fd(::memfd_create("ronde", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw failure_of("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) throw failure_of("ftruncate");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) throw failure_of("F_ADD_SEALS");
  return fd;
}

struct stat status_of(int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) throw failure_of("fstat");
  return status;
}

void check_memory(int fd, std::size_t bytes) {
  const struct stat status = status_of(fd);
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) throw failure_of("F_GET_SEALS");
  if (status.st_size != static_cast<off_t>(bytes) || (seals & kSeals) != kSeals) {
    throw Error("the shared memory has " + std::to_string(status.st_size) + " bytes, not " +
                std::to_string(bytes) + ", or is not sealed: do all ranks run the same version?");
  }
}

}  // namespace

void leave_out_of_core_dumps(const SharedMemory& memory) noexcept {
  // Advice: where it is not taken, dumps are larger.
  static_cast<void>(::madvise(memory.bytes().data(), memory.bytes().size(), MADV_DONTDUMP));
}

OfferedMemory::OfferedMemory(std::size_t bytes) : fd_(create_memory(bytes)) {}

MemoryOffer OfferedMemory::offer() const {
  const struct stat status = status_of(fd_.get());
  return {.process = ::getpid(),
          .descriptor = fd_.get(),
          .device = status.st_dev,
          .inode = status.st_ino,
          .bytes = static_cast<std::uint64_t>(status.st_size)};
}

SharedMemory map_offered(const MemoryOffer& offer) {
  const std::string path =
      "/proc/" + std::to_string(offer.process) + "/fd/" + std::to_string(offer.descriptor);
  const auto check_identity = [&](const struct stat& status) {
    const bool is_meant = status.st_dev == offer.device && status.st_ino == offer.inode;
    if (is_meant && S_ISREG(status.st_mode)) return;
    throw Error(path + " is another file here: do the ranks run in one container?");
  };
  // In another container the path may name anything, and opening a device has effects.
  struct stat seen = {};
  if (::stat(path.c_str(), &seen) != 0) throw failure_of(path.c_str());
  check_identity(seen);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) throw failure_of(path.c_str());
  check_identity(status_of(fd.get()));
  const auto bytes = static_cast<std::size_t>(offer.bytes);
  check_memory(fd.get(), bytes);
  return {std::move(fd), bytes};
}

SharedMemory share_memory(const Meeting& meeting, std::size_t bytes, MappedRange own) {
  const auto ranks = static_cast<std::size_t>(meeting.topology.local_size);
  const bool leads = meeting.topology.local_rank == 0;
  DescriptorMail mail(meeting);
  UniqueFd fd;
  // The others' queues hold one message each, however many ranks there are.
  in_step(meeting, kMemoryGoal, [&] {
    if (!leads) return std::string();
    fd = create_memory(bytes);
    for (std::size_t rank = 1; rank < ranks; ++rank) mail.send(rank, fd.get());
    return std::string();
  });
  SharedMemory memory;
  in_step(meeting, kMemoryGoal, [&] {
    if (!leads) fd = mail.receive(0);
    check_memory(fd.get(), bytes);
    memory = SharedMemory(std::move(fd), bytes, own);
    return std::string();
  });
  return memory;
}

std::vector<UniqueFd> share_descriptors(const Meeting& meeting, int fd) {
  // Groups of other hosts may be smaller, but every rank takes part in every exchange.
  const Topology& topology = meeting.topology;
  std::size_t largest = 1;
  for (const int host : topology.host_of) {
    const auto ranks = std::count(topology.host_of.begin(), topology.host_of.end(), host);
    largest = std::max(largest, static_cast<std::size_t>(ranks));
  }
  const auto ranks = static_cast<std::size_t>(topology.local_size);
  const auto own = static_cast<std::size_t>(topology.local_rank);
  constexpr std::size_t kBatch = DescriptorMail::kMostUnread;
  DescriptorMail mail(meeting);
  std::vector<UniqueFd> received(ranks);
  for (std::size_t first = 1; first < largest; first += kBatch) {
    const std::size_t end = std::min(first + kBatch, ranks);
    in_step(meeting, kDescriptorGoal, [&] {
      for (std::size_t step = first; step < end; ++step) mail.send((own + step) % ranks, fd);
      return std::string();
    });
    in_step(meeting, kDescriptorGoal, [&] {
      for (std::size_t step = first; step < end; ++step) {
        const std::size_t from = (own + ranks - step) % ranks;
        received[from] = mail.receive(from);
      }
      return std::string();
    });
  }
  in_step(meeting, kDescriptorGoal, [&] {
    received[own] = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!received[own]) throw failure_of("F_DUPFD_CLOEXEC");
    return std::string();
  });
  return received;
}

}  // namespace ronde::shm
