// SPDX-License-Identifier: Apache-2.0
// Local rank 0 makes a sealed memfd and sends its descriptor to the other ranks of its host, which
// check its size and seals and map it. Ranks that cannot exchange anything at that time map offered
// memory by its path under /proc/PID/fd.
//
// Descriptors travel as SCM_RIGHTS over abstract Unix datagram sockets. The ranks exchange the
// names of their sockets and a random token each; a message counts if it contains the receiver's
// token and comes from the same user.
#include "backends/shm/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "core/src/base/text.h"

namespace ronde::shm {
namespace {

constexpr std::size_t kSecretBytes = 16;
constexpr std::size_t kLongestPayload = 256;

Error failure_of(const std::string& call) {
  return Error(call + ": " + errno_text(errno));
}

UniqueFd bound_socket(const std::string& text) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw failure_of("socket");
  const int on = 1;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    throw failure_of("SO_PASSCRED");
  }
  const net::Address name = net::unix_address(text);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name.storage), name.length) != 0) {
    throw failure_of("binding an abstract Unix socket");
  }
  return fd;
}

constexpr const char* kMemoryGoal =
    "cannot share memory with the other ranks of its host (RONDE_CPU_BACKEND=mpi, or fabric where "
    "there is no MPI, needs none)";
constexpr const char* kDescriptorGoal =
    "cannot pass file descriptors to the other ranks of its host";

/// Seals fix the size: a peer that shrank the memory would kill the others by SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// Checks the limit first, as ftruncate beyond it would end the process by a signal.
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

DescriptorMail::Attachments DescriptorMail::attachments_of(msghdr& message) {
  Attachments found;
  found.is_cut = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    const unsigned char* const data = CMSG_DATA(header);
    if (header->cmsg_type == SCM_CREDENTIALS) {
      ucred sender = {};
      std::memcpy(&sender, data, sizeof sender);
      found.user = sender.uid;
    }
    if (header->cmsg_type != SCM_RIGHTS) continue;
    // A stranger may have attached several; none must stay open without an owner.
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, data + at, sizeof number);
      found.fd = UniqueFd(number);
    }
  }
  return found;
}

DescriptorMail::DescriptorMail(const Meeting& meeting)
    : own_local_rank_(static_cast<std::size_t>(meeting.topology.local_rank)) {
  const auto blobs = in_step(meeting, "cannot meet the other ranks of its host", [&] {
    const std::string name = "ronde-" + to_hex(random_bytes(kSecretBytes));
    socket_ = bound_socket(name);
    return pack_fields({name, random_bytes(kSecretBytes)});
  });
  const Topology& topology = meeting.topology;
  const int host = topology.host_of[static_cast<std::size_t>(topology.rank)];
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    if (topology.host_of[rank] != host) continue;
    const std::vector<std::string> fields =
        unpack_fields_from(static_cast<int>(rank), blobs[rank], 2);
    addresses_.push_back({fields[0], fields[1]});
  }
}

void DescriptorMail::send(std::size_t local_rank, int fd) const {
  const Address& to = addresses_.at(local_rank);
  std::string payload = pack_fields({to.token, std::to_string(own_local_rank_)});
  net::Address name = net::unix_address(to.socket);
  iovec piece = {payload.data(), payload.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fd)> control = {};
  msghdr message = {};
  message.msg_name = &name.storage;
  message.msg_namelen = name.length;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  const std::string what = "sending a file descriptor to local rank " + std::to_string(local_rank);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) throw failure_of(what);
}

UniqueFd DescriptorMail::receive(std::size_t local_rank) {
  read_all();
  Attachments attachments = std::move(received_[local_rank]);
  received_.erase(local_rank);
  const std::string sender = "local rank " + std::to_string(local_rank);
  if (attachments.is_cut) {
    throw Error("receiving the file descriptor of " + sender + ": " + errno_text(EMFILE));
  }
  if (!attachments.fd) throw Error("no file descriptor came from " + sender + " of this user");
  return std::move(attachments.fd);
}

void DescriptorMail::read_all() {
  for (;;) {
    std::string payload(kLongestPayload, '\0');
    iovec piece = {payload.data(), payload.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control =
        {};
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0) throw failure_of("receiving a file descriptor");
    payload.resize(static_cast<std::size_t>(got));
    accept(payload, attachments_of(message));
  }
}

void DescriptorMail::accept(const std::string& payload, Attachments attachments) {
  for (std::size_t rank = 0; rank < addresses_.size(); ++rank) {
    const bool is_from_rank =
        payload == pack_fields({addresses_[own_local_rank_].token, std::to_string(rank)});
    if (is_from_rank && attachments.user == ::geteuid()) received_[rank] = std::move(attachments);
  }
}

std::vector<std::string> in_step(const Meeting& meeting, const std::string& goal,
                                 const std::function<std::string()>& step) {
  std::string error;
  std::string own;
  try {
    own = step();
  } catch (...) {
    error = exception_text();
  }
  std::vector<std::string> results;
  int rank = 0;
  for (const std::string& blob : meeting.exchange(pack_fields({error, own}))) {
    const std::vector<std::string> fields = unpack_fields_from(rank, blob, 2);
    if (!fields[0].empty()) {
      throw StepError(rank, "rank " + std::to_string(rank) + " " + goal + ": " + fields[0]);
    }
    results.push_back(fields[1]);
    ++rank;
  }
  return results;
}

void leave_out_of_core_dumps(const SharedMemory& memory) noexcept {
  // If the kernel ignores the advice, dumps are larger.
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
  // In another container the path may lead to any file, and opening a device has side effects.
  struct stat seen = {};
  if (::stat(path.c_str(), &seen) != 0) throw failure_of(path);
  check_identity(seen);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) throw failure_of(path);
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
  // Each queue holds one message, so any number of ranks is fine.
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
  // Every rank takes part in every exchange, so all loop as often as the largest host needs.
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
