// SPDX-License-Identifier: Apache-2.0
// File descriptors are sent as SCM_RIGHTS over abstract Unix datagram sockets. The ranks exchange
// the names of their sockets and a random token each; a message counts if it carries the receiver's
// token and comes from the same user.
#include "backends/shm/memory/descriptor_mail.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::shm {
namespace {

constexpr std::size_t kSecretBytes = 16;
constexpr std::size_t kLongestPayload = 256;

UniqueFd bound_socket(const std::string& text) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error("socket: " + errno_text(errno));
  const int on = 1;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    throw Error("SO_PASSCRED: " + errno_text(errno));
  }
  const net::Address name = net::unix_address(text);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name.storage), name.length) != 0) {
    throw Error("binding an abstract Unix socket: " + errno_text(errno));
  }
  return fd;
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
    // A stranger may have attached several: none may stay open unowned.
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
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    throw Error("sending a file descriptor to local rank " + std::to_string(local_rank) + ": " +
                errno_text(errno));
  }
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
    if (got < 0) throw Error("receiving a file descriptor: " + errno_text(errno));
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

}  // namespace ronde::shm
