// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/src/base/shared_mapping.h"
#include "core/src/base/system.h"
#include "ronde/error.h"
#include "ronde/topology.h"

namespace ronde::shm {

/// The ranks, and how they exchange blobs while a group starts.
struct Meeting {
  const Topology& topology;
  /// See BackendContext::exchange.
  const std::function<std::vector<std::string>(std::string_view blob)>& exchange;
};

/// Reports a step that failed on a rank. Every rank throws it after all have exchanged their
/// results, so all can continue without the step. After any other GroupError a rank is lost, and no
/// rank may continue.
class StepError final : public GroupError {
 public:
  using GroupError::GroupError;
};

/// Runs `step` on every rank and returns the results of all ranks, by rank. If it throws on any,
/// every rank throws the same StepError: "rank 2 <goal>: <what it threw>".
std::vector<std::string> in_step(const Meeting& meeting, const std::string& goal,
                                 const std::function<std::string()>& step);

/// Passes file descriptors between the ranks of one host, over abstract Unix sockets. No call
/// blocks: a descriptor can be received after the exchange that follows its sending.
///
/// A stranger on the host can see the sockets and write to them, but does not know the random
/// tokens: its messages are dropped, and so are those of other users.
class DescriptorMail {
 public:
  /// All ranks call it together. If it fails on one, all throw.
  explicit DescriptorMail(const Meeting& meeting);

  /// The number of unread messages that may wait for one rank: the kernel's default of
  /// net.unix.max_dgram_qlen.
  static constexpr std::size_t kMostUnread = 10;

  /// Throws ronde::Error if the peer's socket refuses it.
  void send(std::size_t local_rank, int fd) const;
  /// Throws ronde::Error if no descriptor has arrived from that rank.
  UniqueFd receive(std::size_t local_rank);

 private:
  struct Address {
    std::string socket, token;
  };

  /// The attachments of a message.
  struct Attachments {
    UniqueFd fd;
    uid_t user = static_cast<uid_t>(-1);
    bool is_cut = false;  ///< the limit on open files left no room for the descriptor
  };

  static Attachments attachments_of(msghdr& message);
  void read_all();
  void accept(const std::string& payload, Attachments attachments);

  const std::size_t own_local_rank_;
  UniqueFd socket_;
  std::vector<Address> addresses_;               ///< by local rank
  std::map<std::size_t, Attachments> received_;  ///< by local rank
};

/// Describes memory that a process of this host offers, as plain bytes to send.
struct MemoryOffer {
  std::int64_t process = 0;
  std::int64_t descriptor = -1;  ///< of that process
  std::uint64_t device = 0;      ///< device and inode identify the memory
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
};

/// A mapping of memory that the ranks of one host share. The memory has no name: it disappears with
/// the last process that maps it, however that process ends.
using SharedMemory = SharedMapping;

/// Excludes memory that is large and mostly untouched, as it would make core dumps slow.
void leave_out_of_core_dumps(const SharedMemory& memory) noexcept;

/// Zeroed memory that other processes of this host may map while this object lives. For ranks that
/// can no longer exchange blobs: the caller sends them the offer by other means.
class OfferedMemory {
 public:
  /// Throws ronde::Error.
  explicit OfferedMemory(std::size_t bytes);
  MemoryOffer offer() const;

 private:
  UniqueFd fd_;
};

/// Maps offered memory. Throws ronde::Error, for instance if the offering process runs as another
/// user or in another container.
SharedMemory map_offered(const MemoryOffer& offer);

// All ranks of all hosts call the following functions at the same time, those of a host with equal
// arguments. If one rank fails, all throw the same GroupError, which names it. Ranks may be
// processes (also of different pid namespaces) or threads of one process.

/// Returns `bytes` of zeroed memory that the ranks of a host share. No page is touched yet: the
/// rank that first touches a page has it on its NUMA node. `own`: see SharedMapping; each rank has
/// its own.
SharedMemory share_memory(const Meeting& meeting, std::size_t bytes, MappedRange own = {});

/// Sends `fd` to the other ranks of the host. Returns the descriptors of all by local rank, with a
/// duplicate of `fd`. The caller keeps `fd`.
std::vector<UniqueFd> share_descriptors(const Meeting& meeting, int fd);

}  // namespace ronde::shm
