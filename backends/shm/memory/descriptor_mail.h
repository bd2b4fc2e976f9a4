// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "backends/shm/memory/in_step.h"
#include "core/src/base/system.h"

namespace ronde::shm {

/// Passes file descriptors between the ranks of one host, over abstract Unix sockets. Nothing here
/// waits: a descriptor can be received once an exchange has followed its sending.
///
/// A stranger on the host can see the sockets and write to them, but knows none of the random
/// tokens: its messages are dropped, and so are those of other users.
class DescriptorMail {
 public:
  /// All ranks call it together; if it fails on one, all throw.
  explicit DescriptorMail(const Meeting& meeting);

  /// How many messages may wait for one rank unread: at most net.unix.max_dgram_qlen, of which
  /// the kernel's default is 10.
  static constexpr std::size_t kMostUnread = 10;

  /// Throws ronde::Error if the peer's socket does not take it.
  void send(std::size_t local_rank, int fd) const;
  /// Throws ronde::Error if nothing came from it.
  UniqueFd receive(std::size_t local_rank);

 private:
  struct Address {
    std::string socket, token;
  };

  /// The attachments of a message.
  struct Attachments {
    UniqueFd fd;
    uid_t user = static_cast<uid_t>(-1);
    bool is_cut = false;  ///< this process may not open another descriptor
  };

  static Attachments attachments_of(msghdr& message);
  void read_all();
  void accept(const std::string& payload, Attachments attachments);

  const std::size_t own_local_rank_;
  UniqueFd socket_;
  std::vector<Address> addresses_;               ///< by local rank
  std::map<std::size_t, Attachments> received_;  ///< by local rank
};

}  // namespace ronde::shm
