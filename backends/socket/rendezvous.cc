// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>

#include "backends/socket/host.h"
#include "ronde/error.h"

// Note [Bootstrap of the star]
// 1. All ranks exchange their host identities.
// 2. Rank 0 listens: at an abstract Unix socket for the ranks of its host, at a TCP port only if
//    there are other hosts. It exchanges names, addresses and two random tokens.
// 3. The others connect and send (magic, rank, first token); rank 0 answers with the second one.
//    An address may lead to the wrong machine (every host can have the same bridge address), so a
//    connection only counts once both tokens were right.

namespace ronde::net {
namespace {

constexpr std::uint64_t kMagic = 0x31'65'64'6e'6f'52'01'00;
constexpr std::size_t kTokenBytes = 16;
constexpr std::chrono::seconds kHandshakeTimeout{10};
constexpr std::chrono::milliseconds kRetryPause{20};

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint32_t rank = 0;
  std::array<char, kTokenBytes> token = {};
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 32);

/// Where rank 0 can be reached and how both sides prove who they are.
struct Invitation {
  std::string unix_name;
  std::uint16_t port = 0;
  std::vector<std::string> addresses;
  std::string hello_token;
  std::string reply_token;
};

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  std::string text;
};

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

/// Waits for an event; false once the deadline has passed.
bool wait_for_events(std::vector<pollfd>& fds, Clock::time_point deadline) {
  while (true) {
    const int ready =
        ::poll(fds.data(), static_cast<nfds_t>(fds.size()), milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) throw Error("poll failed: " + errno_text(errno));
  }
}

Address unix_address(const std::string& name) {
  Address address;
  auto& unix_part = reinterpret_cast<sockaddr_un&>(address.storage);
  unix_part.sun_family = AF_UNIX;
  // A leading zero makes it abstract: no file, gone with the last socket.
  std::memcpy(unix_part.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  address.text = "local socket " + name;
  return address;
}

Address tcp_address(const std::string& numeric, std::uint16_t port) {
  Address address;
  address.text = numeric + " port " + std::to_string(port);
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET, numeric.c_str(), &ipv4.sin_addr) == 1) {
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    address.length = sizeof ipv4;
  } else if (inet_pton(AF_INET6, numeric.c_str(), &ipv6.sin6_addr) == 1) {
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    address.length = sizeof ipv6;
  } else {
    throw Error("rank 0 sent '" + numeric + "', which is no numeric address");
  }
  return address;
}

void set_option(int fd, int level, int name, int value) {
  if (::setsockopt(fd, level, name, &value, sizeof value) != 0) {
    throw Error("cannot set option " + std::to_string(name) + " of a socket: " + errno_text(errno));
  }
}

/// Small messages leave at once, and a host that vanished is noticed in about 15 s.
void tune_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 15'000);
}

UniqueFd make_socket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

UniqueFd listen_at(const Address& address) {
  UniqueFd listener = make_socket(address.storage.ss_family);
  if (listener && address.storage.ss_family == AF_INET6) {
    set_option(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) !=
          0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return UniqueFd();
  }
  return listener;
}

UniqueFd listen_unix(const std::string& name) {
  UniqueFd listener = listen_at(unix_address(name));
  if (!listener) throw Error("rank 0 cannot listen at a local socket: " + errno_text(errno));
  return listener;
}

/// Listens at any port of all addresses; one without IPv6 takes IPv4 alone.
UniqueFd listen_tcp(std::uint16_t& port) {
  UniqueFd listener = listen_at(tcp_address("::", 0));
  if (!listener) listener = listen_at(tcp_address("0.0.0.0", 0));
  if (!listener) throw Error("rank 0 cannot listen at a TCP port: " + errno_text(errno));
  sockaddr_storage bound = {};
  socklen_t length = sizeof bound;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    throw Error("rank 0 cannot tell its TCP port: " + errno_text(errno));
  }
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return listener;
}

std::string pack_invitation(const Invitation& invitation) {
  std::vector<std::string> fields = {invitation.unix_name, std::to_string(invitation.port),
                                     invitation.hello_token, invitation.reply_token};
  fields.insert(fields.end(), invitation.addresses.begin(), invitation.addresses.end());
  return pack(fields);
}

Invitation unpack_invitation(std::string_view bytes) {
  const std::vector<std::string> fields = unpack(bytes);
  if (fields.size() < 4 || fields[2].size() != kTokenBytes || fields[3].size() != kTokenBytes) {
    throw Error(
        "rank 0 sent a bootstrap message that cannot be read (do all ranks run the same "
        "build of Ronde?)");
  }
  Invitation invitation;
  invitation.unix_name = fields[0];
  invitation.port = static_cast<std::uint16_t>(std::stoul(fields[1]));
  invitation.hello_token = fields[2];
  invitation.reply_token = fields[3];
  invitation.addresses.assign(fields.begin() + 4, fields.end());
  return invitation;
}

/// The other side's process if it is one of this host that this process can see. The kernel
/// translates the number into our pid namespace.
pid_t process_of(int fd) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return 0;
  return credentials.pid > 0 && credentials.pid != ::getpid() ? credentials.pid : 0;
}

/// Rank 0's side: takes connections until every other rank has proved itself.
class Reception {
 public:
  Reception(int size, const Invitation& invitation, std::vector<UniqueFd> listeners)
      : invitation_(invitation),
        listeners_(std::move(listeners)),
        peers_(static_cast<std::size_t>(size)) {}

  std::vector<Peer> run(Clock::time_point deadline);

 private:
  struct Guest {
    UniqueFd socket;
    bool tcp = false;
    std::string received;
    Clock::time_point deadline;
    bool finished = false;
  };

  void accept_from(const UniqueFd& listener);
  void read_hello(Guest& guest);
  void admit(Guest& guest, int rank);
  std::vector<pollfd> watched() const;
  std::vector<int> missing() const;
  [[noreturn]] void fail(std::chrono::seconds waited) const;

  const Invitation& invitation_;
  std::vector<UniqueFd> listeners_;
  std::vector<Peer> peers_;  ///< by rank; [0] stays empty
  std::vector<Guest> guests_;
  int refused_ = 0;
};

std::vector<Peer> Reception::run(Clock::time_point deadline) {
  const auto start = Clock::now();
  while (!missing().empty()) {
    std::vector<pollfd> fds = watched();
    // Strangers that say nothing are dropped even if nobody else comes.
    const auto wake = std::min(deadline, Clock::now() + kHandshakeTimeout);
    if (!wait_for_events(fds, wake) && wake == deadline) {
      fail(std::chrono::round<std::chrono::seconds>(Clock::now() - start));
    }
    for (std::size_t i = 0; i < guests_.size(); ++i) {
      if (fds[listeners_.size() + i].revents != 0) read_hello(guests_[i]);
      if (Clock::now() >= guests_[i].deadline) guests_[i].finished = true;
    }
    std::erase_if(guests_, [](const Guest& guest) { return guest.finished; });
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      if (fds[i].revents != 0) accept_from(listeners_[i]);
    }
  }
  peers_.erase(peers_.begin());
  return std::move(peers_);
}

std::vector<pollfd> Reception::watched() const {
  std::vector<pollfd> fds;
  for (const UniqueFd& listener : listeners_) fds.push_back({listener.get(), POLLIN, 0});
  for (const Guest& guest : guests_) fds.push_back({guest.socket.get(), POLLIN, 0});
  return fds;
}

std::vector<int> Reception::missing() const {
  std::vector<int> ranks;
  for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
    if (!peers_[rank].socket) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void Reception::fail(std::chrono::seconds waited) const {
  const std::vector<int> ranks = missing();
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  std::string text = "rank 0 waited " + std::to_string(waited.count()) +
                     " s for connections from " + std::to_string(ranks.size()) +
                     " rank(s): " + list +
                     ". They may have died or hang; across hosts, a firewall may block TCP port " +
                     std::to_string(invitation_.port);
  if (refused_ > 0) {
    text += ". " + std::to_string(refused_) + " connection(s) without the job's token were refused";
  }
  throw GroupError(ranks.front(), text);
}

void Reception::accept_from(const UniqueFd& listener) {
  while (true) {
    sockaddr_storage from = {};
    socklen_t length = sizeof from;
    UniqueFd socket(::accept4(listener.get(), reinterpret_cast<sockaddr*>(&from), &length,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE) {
        throw Error("rank 0 cannot accept connections: " + errno_text(errno) +
                    "; raise the limit with 'ulimit -n'");
      }
      return;  // nobody there, or one that gave up: the listener says when to look again
    }
    const bool tcp = from.ss_family != AF_UNIX;
    guests_.push_back({std::move(socket), tcp, {}, Clock::now() + kHandshakeTimeout, false});
  }
}

void Reception::read_hello(Guest& guest) {
  char buffer[sizeof(Hello)];
  const ssize_t got =
      ::recv(guest.socket.get(), buffer, sizeof(Hello) - guest.received.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    guest.finished = true;  // it tries another address, or died: it shows in missing()
    return;
  }
  guest.received.append(buffer, static_cast<std::size_t>(got));
  if (guest.received.size() < sizeof(Hello)) return;
  guest.finished = true;
  Hello hello;
  std::memcpy(&hello, guest.received.data(), sizeof hello);
  const bool known = hello.magic == kMagic && hello.rank > 0 && hello.rank < peers_.size() &&
                     std::string_view(hello.token.data(), kTokenBytes) == invitation_.hello_token;
  if (known) {
    admit(guest, static_cast<int>(hello.rank));
  } else {
    ++refused_;
  }
}

/// A rank that comes twice gave its first connection up: the last one counts.
void Reception::admit(Guest& guest, int rank) {
  const int fd = guest.socket.get();
  if (guest.tcp) tune_tcp(fd);
  const std::string& reply = invitation_.reply_token;
  const ssize_t sent = ::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(reply.size())) return;
  const pid_t pid = guest.tcp ? 0 : process_of(fd);
  peers_[static_cast<std::size_t>(rank)] = Peer{rank, std::move(guest.socket), pid};
}

/// The side of every other rank: tries all addresses of rank 0 at the same time, and takes the
/// first one that proves to be rank 0.
class Visit {
 public:
  Visit(int rank, const Invitation& invitation, std::vector<Address> addresses)
      : rank_(rank), invitation_(invitation), addresses_(std::move(addresses)) {}

  UniqueFd run(Clock::time_point deadline);

 private:
  enum class State { Connecting, Connected, AwaitingReply };
  struct Attempt {
    UniqueFd socket;
    std::size_t address = 0;
    State state = State::Connecting;
    std::string received = {};
    Clock::time_point deadline = {};
  };

  void start_all();
  std::optional<UniqueFd> advance_all(Clock::time_point deadline);
  /// False: the attempt failed and `errors_` says why.
  bool advance(Attempt& attempt);
  bool finish_connect(Attempt& attempt);
  bool say_hello(Attempt& attempt);
  bool read_reply(Attempt& attempt);
  bool proved(const Attempt& attempt) const { return attempt.received == invitation_.reply_token; }
  bool fail(const Attempt& attempt, const std::string& why);

  int rank_;
  const Invitation& invitation_;
  std::vector<Address> addresses_;
  std::vector<Attempt> attempts_;
  std::vector<std::string> errors_ = std::vector<std::string>(addresses_.size());
};

UniqueFd Visit::run(Clock::time_point deadline) {
  const auto start = Clock::now();
  while (Clock::now() < deadline) {
    start_all();
    while (!attempts_.empty()) {
      if (std::optional<UniqueFd> socket = advance_all(deadline)) return std::move(*socket);
      if (Clock::now() >= deadline) break;
    }
    // All failed at once: a full backlog, or a route that is not up yet.
    std::this_thread::sleep_for(kRetryPause);
  }
  const auto waited = std::chrono::round<std::chrono::seconds>(Clock::now() - start);
  std::string text = "rank " + std::to_string(rank_) + " could not connect to rank 0 within " +
                     std::to_string(waited.count()) + " s:";
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    text += " " + addresses_[i].text + " (" + (errors_[i].empty() ? "no answer" : errors_[i]) + ")";
  }
  if (addresses_.empty()) text += " rank 0 has no network address that other hosts could reach";
  throw GroupError(0, text);
}

void Visit::start_all() {
  attempts_.clear();
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    const Address& address = addresses_[i];
    Attempt attempt{make_socket(address.storage.ss_family), i};
    const bool connected =
        attempt.socket &&
        ::connect(attempt.socket.get(), reinterpret_cast<const sockaddr*>(&address.storage),
                  address.length) == 0;
    if (connected) attempt.state = State::Connected;
    if (connected || (attempt.socket && errno == EINPROGRESS)) {
      attempts_.push_back(std::move(attempt));
    } else {
      errors_[i] = errno_text(errno);
    }
  }
}

std::optional<UniqueFd> Visit::advance_all(Clock::time_point deadline) {
  // One handshake at a time: rank 0 must not take one connection and this rank another.
  const bool busy = std::any_of(attempts_.begin(), attempts_.end(), [](const Attempt& attempt) {
    return attempt.state == State::AwaitingReply;
  });
  const auto next = std::find_if(attempts_.begin(), attempts_.end(), [](const Attempt& attempt) {
    return attempt.state == State::Connected;
  });
  if (!busy && next != attempts_.end() && !say_hello(*next)) attempts_.erase(next);

  std::vector<pollfd> fds;
  auto wake = deadline;
  for (const Attempt& attempt : attempts_) {
    const bool connecting = attempt.state == State::Connecting;
    const bool waiting = attempt.state == State::AwaitingReply;
    const short events = connecting ? POLLOUT : static_cast<short>(waiting ? POLLIN : 0);
    fds.push_back({attempt.socket.get(), events, 0});
    if (waiting) wake = std::min(wake, attempt.deadline);
  }
  if (fds.empty()) return std::nullopt;
  wait_for_events(fds, wake);
  for (std::size_t i = attempts_.size(); i-- > 0;) {
    const bool expired =
        attempts_[i].state == State::AwaitingReply && Clock::now() >= attempts_[i].deadline;
    if (fds[i].revents != 0 && !advance(attempts_[i])) {
      attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (proved(attempts_[i])) {
      return std::move(attempts_[i].socket);
    } else if (expired) {
      fail(attempts_[i], "connected, but got no answer");
      attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return std::nullopt;
}

bool Visit::advance(Attempt& attempt) {
  switch (attempt.state) {
    case State::Connecting:
      return finish_connect(attempt);
    case State::Connected:
      return fail(attempt, "closed by the other side");
    case State::AwaitingReply:
      return read_reply(attempt);
  }
  return false;
}

bool Visit::finish_connect(Attempt& attempt) {
  int code = 0;
  socklen_t length = sizeof code;
  if (::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) code = errno;
  if (code != 0) return fail(attempt, errno_text(code));
  attempt.state = State::Connected;
  return true;
}

bool Visit::say_hello(Attempt& attempt) {
  const int fd = attempt.socket.get();
  if (addresses_[attempt.address].storage.ss_family != AF_UNIX) tune_tcp(fd);
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(rank_);
  std::copy_n(invitation_.hello_token.begin(), kTokenBytes, hello.token.begin());
  const ssize_t sent = ::send(fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(sizeof hello)) return fail(attempt, errno_text(errno));
  attempt.state = State::AwaitingReply;
  attempt.deadline = Clock::now() + kHandshakeTimeout;
  return true;
}

bool Visit::read_reply(Attempt& attempt) {
  char buffer[kTokenBytes];
  const ssize_t got =
      ::recv(attempt.socket.get(), buffer, kTokenBytes - attempt.received.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got < 0) return fail(attempt, errno_text(errno));
  if (got == 0) return fail(attempt, "closed by the other side");
  attempt.received.append(buffer, static_cast<std::size_t>(got));
  if (attempt.received.size() == kTokenBytes && !proved(attempt)) {
    return fail(attempt, "answered by a stranger");
  }
  return true;
}

bool Visit::fail(const Attempt& attempt, const std::string& why) {
  errors_[attempt.address] = why;
  return false;
}

Meeting receive_all(const StarOptions& options, const Exchange& exchange, Meeting meeting,
                    bool several_hosts, Clock::time_point deadline) {
  Invitation invitation;
  invitation.unix_name = "ronde-" + to_hex(random_bytes(12));
  invitation.hello_token = random_bytes(kTokenBytes);
  invitation.reply_token = random_bytes(kTokenBytes);
  std::vector<UniqueFd> listeners;
  listeners.push_back(listen_unix(invitation.unix_name));
  if (several_hosts) {
    listeners.push_back(listen_tcp(invitation.port));
    invitation.addresses = interface_addresses(options.offer_loopback);
  }
  exchange(pack_invitation(invitation));
  meeting.peers = Reception(options.size, invitation, std::move(listeners)).run(deadline);
  return meeting;
}

Meeting visit_root(const StarOptions& options, const Exchange& exchange, Meeting meeting,
                   Clock::time_point deadline) {
  const Invitation invitation = unpack_invitation(exchange({}).at(0));
  const bool same_host = meeting.hosts[static_cast<std::size_t>(options.rank)] == meeting.hosts[0];
  std::vector<Address> addresses;
  if (same_host) {
    addresses.push_back(unix_address(invitation.unix_name));
  } else {
    for (const std::string& text : invitation.addresses) {
      addresses.push_back(tcp_address(text, invitation.port));
    }
  }
  UniqueFd socket = Visit(options.rank, invitation, std::move(addresses)).run(deadline);
  const pid_t pid = same_host ? process_of(socket.get()) : 0;
  meeting.peers.push_back(Peer{0, std::move(socket), pid});
  return meeting;
}

}  // namespace

Meeting meet(const StarOptions& options, const Exchange& exchange) {
  Meeting meeting;
  if (options.size == 1) {
    meeting.hosts = {"this host"};
    return meeting;
  }
  const auto deadline = Clock::now() + options.timeout;
  meeting.hosts = exchange(options.host.empty() ? host_identity() : options.host);
  const bool several_hosts =
      std::any_of(meeting.hosts.begin(), meeting.hosts.end(),
                  [&](const auto& host) { return host != meeting.hosts[0]; });
  if (options.rank == 0) {
    return receive_all(options, exchange, std::move(meeting), several_hosts, deadline);
  }
  return visit_root(options, exchange, std::move(meeting), deadline);
}

}  // namespace ronde::net
