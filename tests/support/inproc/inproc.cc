// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc/inproc.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <mutex>

#include "core/src/base/counter.h"
#include "core/src/base/system.h"
#include "ronde/cores.h"
#include "ronde/error.h"
#include "ronde/kernels.h"
#include "ronde/plugin/transport.h"

namespace ronde::inproc {

/// Where the ranks of a group meet to move data. The n-th collective of every rank belongs
/// together; the last rank to enter does the work for all, under the lock. A message has two ranks,
/// of which the second does the work.
///
/// Thread-safety: every member may be called from any thread.
class Exchange {
 public:
  /// What a rank brings to an operation.
  struct Part {
    const void* input = nullptr;
    void* output = nullptr;
    std::span<const std::size_t> send_counts = {};  ///< alltoall: elements to each rank
  };

  /// One collective operation.
  struct Round {
    std::vector<Part> parts;  ///< by rank
    int entered = 0;
    std::atomic<bool> done{false};
  };

  explicit Exchange(int size) : size_(size) {}

  /// `rank` enters its operation number `sequence`; `work` runs once, when the last rank enters.
  std::shared_ptr<Round> enter(int rank, std::uint64_t sequence, const Part& part,
                               const std::function<void(Round&)>& work) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Round>& round = rounds_[sequence];
    if (!round) {
      round = std::make_shared<Round>();
      round->parts.resize(static_cast<std::size_t>(size_));
    }
    round->parts[static_cast<std::size_t>(rank)] = part;
    const std::shared_ptr<Round> mine = round;
    if (++mine->entered < size_) return mine;
    rounds_.erase(sequence);
    if (aborted_) return mine;
    work(*mine);
    mine->done.store(true, std::memory_order_release);
    return mine;
  }

  /// One end of the message that goes from rank `from` to rank `to`: one brings the input, the
  /// other the output, of `bytes` each.
  std::shared_ptr<Round> pass(int from, int to, const Part& part, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::deque<std::shared_ptr<Round>>& waiting = messages_[{from, to}];
    const bool brings_input = part.input != nullptr;
    if (waiting.empty() || (waiting.front()->parts[0].input != nullptr) == brings_input) {
      waiting.push_back(std::make_shared<Round>());
      waiting.back()->parts = {part};
      return waiting.back();
    }
    const std::shared_ptr<Round> round = std::move(waiting.front());
    waiting.pop_front();
    if (aborted_) return round;
    const Part& first = round->parts[0];
    std::memcpy(brings_input ? first.output : part.output, brings_input ? part.input : first.input,
                bytes);
    round->done.store(true, std::memory_order_release);
    return round;
  }

  /// From now on nobody's buffers are touched any more.
  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }

 private:
  const int size_;

  // Guarded by mutex_.
  std::mutex mutex_;
  bool aborted_ = false;
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds_;
  /// One end is there: the same end of all, oldest first.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Round>>> messages_;
};

/// The mailboxes of a group. Thread-safety: every member may be called from any thread.
class Hub {
 public:
  Hub(const std::vector<int>& host_of, int most_leaders_below)
      : most_leaders_below_(most_leaders_below),
        tree_(make_topology(0, host_of, most_leaders_below)) {
    for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
      mailboxes_.push_back(std::make_unique<Mailbox>());
      mailboxes_.back()->changed = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
      if (!mailboxes_.back()->changed) throw Error("eventfd failed: " + errno_text(errno));
    }
  }

  int size() const noexcept { return tree_.size; }
  /// Threads of one process share its cores.
  Topology topology(int rank) const {
    Topology topology = make_topology(rank, tree_.host_of, most_leaders_below_);
    topology.local_cores = usable_cores().count();
    return topology;
  }

  void send(int from, int to, std::string_view bytes) {
    if (to < 0 || to >= size() || !are_neighbours(from, to)) {
      throw Error("rank " + std::to_string(from) + " cannot send to rank " + std::to_string(to) +
                  ", which is not its neighbour");
    }
    const std::lock_guard lock(mutex_);
    if (mailbox(from).gone || mailbox(to).gone) return;
    mailbox(to).incoming.push_back({Incoming::Kind::Message, from, std::string(bytes)});
    notify(mailbox(to));
  }

  Incoming poll(int rank) {
    const std::lock_guard lock(mutex_);
    Mailbox& mine = mailbox(rank);
    if (mine.incoming.empty()) return {};
    Incoming next = std::move(mine.incoming.front());
    mine.incoming.pop_front();
    return next;
  }

  bool wait(int rank, Transport::Clock::time_point deadline, int descriptor) {
    constexpr std::chrono::hours kLongest{1};
    Mailbox& mine = mailbox(rank);
    std::array<pollfd, 2> entries = {{{mine.changed.get(), POLLIN, 0}, {descriptor, POLLIN, 0}}};
    const auto now = Transport::Clock::now();
    const auto time = std::clamp<std::chrono::nanoseconds>(deadline - now, {}, kLongest).count();
    const timespec timeout = {time / 1'000'000'000, time % 1'000'000'000};
    if (::ppoll(entries.data(), entries.size(), &timeout, nullptr) < 0 && errno != EINTR) {
      throw Error("ppoll failed: " + errno_text(errno));
    }
    const std::lock_guard lock(mutex_);
    eventfd_t count = 0;
    if (mine.incoming.empty()) ::eventfd_read(mine.changed.get(), &count);
    return std::exchange(mine.woken, false);
  }

  void wake(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    mailbox(rank).woken = true;
    notify(mailbox(rank));
  }

  /// `rank` is gone: it hears nothing more, and those who listen to it are told `text`.
  void leave(int rank, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (mailbox(rank).gone) return;
    mailbox(rank).gone = true;
    for (int other = 0; other < size(); ++other) {
      if (!are_neighbours(rank, other) || mailbox(other).gone) continue;
      mailbox(other).incoming.push_back({Incoming::Kind::PeerLost, rank, text});
      notify(mailbox(other));
    }
  }

 private:
  struct Mailbox {
    UniqueFd changed;  ///< readable if wait() is not to wait
    std::deque<Incoming> incoming;
    bool woken = false;
    bool gone = false;
  };

  bool are_neighbours(int a, int b) const {
    return tree_.parent_of(a) == b || tree_.parent_of(b) == a;
  }
  static void notify(const Mailbox& mailbox) noexcept { ::eventfd_write(mailbox.changed.get(), 1); }
  Mailbox& mailbox(int rank) { return *mailboxes_[static_cast<std::size_t>(rank)]; }

  const int most_leaders_below_;
  const Topology tree_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
};

/// Where the ranks of each process set meet: made by the first of them, gone with the last.
///
/// Thread-safety: every member may be called from any thread.
class SetExchanges {
 public:
  std::shared_ptr<Exchange> of_set(std::uint32_t set, int size) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Exchange> exchange = exchanges_[set].lock();
    if (!exchange) {
      exchange = std::make_shared<Exchange>(size);
      exchanges_[set] = exchange;
    }
    return exchange;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, std::weak_ptr<Exchange>> exchanges_;  ///< guarded by mutex_
};

/// The memory that the boards of a group's ranks share.
///
/// Thread-safety: every member may be called from any thread.
class SharedBoard {
 public:
  explicit SharedBoard(std::shared_ptr<Hub> hub)
      : hub_(std::move(hub)), words_(256), asleep_(static_cast<std::size_t>(hub_->size())) {}

  std::span<Board::Word> words() noexcept { return words_; }
  int size() const noexcept { return hub_->size(); }

  // Exchanges rather than stores and fences: sequentially consistent read-modify-writes on both
  // sides order "asleep, then look" against "change, then notify", and ThreadSanitizer knows them.
  void set_asleep(int rank, Board::Sleep sleep) noexcept {
    word_of(rank).exchange(static_cast<std::uint64_t>(sleep));
  }
  Board::Sleep sleep_of(int rank) noexcept {
    return static_cast<Board::Sleep>(word_of(rank).fetch_add(0));
  }
  /// Unless the rank was woken meanwhile.
  void wake(int rank) noexcept {
    if (word_of(rank).exchange(0) != 0) hub_->wake(rank);
  }

 private:
  std::atomic<std::uint64_t>& word_of(int rank) noexcept {
    return asleep_[static_cast<std::size_t>(rank)].value;
  }

  const std::shared_ptr<Hub> hub_;
  std::vector<Board::Word> words_;
  std::vector<Board::Word> asleep_;  ///< by rank
};

namespace {

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), topology_(hub_->topology(rank)) {}
  ~InprocTransport() override { hub_->leave(topology_.rank, "it was destroyed"); }

  std::string_view name() const noexcept override { return "inproc"; }
  const Topology& topology() const noexcept override { return topology_; }

  void send(int peer, std::string_view message) override {
    sent_.add();
    sent_bytes_.add(message.size());
    hub_->send(topology_.rank, peer, message);
  }
  Incoming poll() override {
    Incoming incoming = hub_->poll(topology_.rank);
    if (incoming.kind == Incoming::Kind::Message) received_.add();
    return incoming;
  }
  bool wait(Clock::time_point deadline, int descriptor) override {
    return hub_->wait(topology_.rank, deadline, descriptor);
  }
  void wake() noexcept override { hub_->wake(topology_.rank); }
  void close(bool, Clock::time_point) override { hub_->leave(topology_.rank, "it closed"); }

  StatsGroup stats() const override {
    return {"inproc transport",
            {{"messages_sent", sent_.get()},
             {"sent_bytes", sent_bytes_.get()},
             {"messages_received", received_.get()}}};
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const Topology topology_;
  Counter sent_, sent_bytes_, received_;
};

class InprocOperation final : public Operation {
 public:
  explicit InprocOperation(std::shared_ptr<Exchange::Round> round) : round_(std::move(round)) {}
  bool poll() override { return round_->done.load(std::memory_order_acquire); }

 private:
  const std::shared_ptr<Exchange::Round> round_;
};

using Part = Exchange::Part;

std::byte* at(void* base, std::size_t bytes) {
  return static_cast<std::byte*>(base) + bytes;
}
const std::byte* at(const void* base, std::size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// accumulator[i] = accumulator[i] op input[i]: in rank order, as the caller takes the inputs.
void reduce_into(void* accumulator, const void* input, std::size_t count, DataType dtype,
                 ReduceOp op) {
  if (op == ReduceOp::Average || is_half(dtype)) {
    throw Error("an inproc backend was asked for what the packing around it does");
  }
  const std::array<const void*, 2> inputs = {accumulator, input};
  const Reduction reduction{.dtype = dtype, .op = op};
  best_kernels().reduce(accumulator, inputs, count, reduction, Store::Regular);
}

/// Reduces `count` elements that lie `offset` bytes behind the beginning of every input, in rank
/// order.
void reduce(const Exchange::Round& round, std::size_t offset, std::size_t count, DataType dtype,
            ReduceOp op, void* result) {
  copy(result, at(round.parts[0].input, offset), count * size_of(dtype));
  for (std::size_t rank = 1; rank < round.parts.size(); ++rank) {
    reduce_into(result, at(round.parts[rank].input, offset), count, dtype, op);
  }
}

class InprocBackend final : public Backend {
 public:
  InprocBackend(std::shared_ptr<Exchange> exchange, int rank)
      : exchange_(std::move(exchange)), rank_(rank) {}

  std::string_view name() const noexcept override { return "inproc"; }

  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.dtypes.set();
    capabilities.ops.set();
    return capabilities;
  }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    const Segment segment = call.segments[0];
    return start({segment.input, segment.output}, [=](Exchange::Round& round) {
      std::vector<std::byte> result(segment.count * size_of(call.dtype));
      reduce(round, 0, segment.count, call.dtype, call.op, result.data());
      for (const Part& part : round.parts) copy(part.output, result.data(), result.size());
    });
  }

  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    const Segment segment = call.segments[0];
    return start({segment.input, segment.output}, [=](Exchange::Round& round) {
      const void* source = round.parts[static_cast<std::size_t>(call.root)].input;
      for (const Part& part : round.parts) {
        if (part.output != source) copy(part.output, source, segment.count * size_of(call.dtype));
      }
    });
  }

  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return start({call.input, call.output}, [=](Exchange::Round& round) {
      for (const Part& to : round.parts) {
        std::size_t offset = 0;
        for (std::size_t from = 0; from < round.parts.size(); ++from) {
          const std::size_t bytes = call.counts[from] * size_of(call.dtype);
          copy(at(to.output, offset), round.parts[from].input, bytes);
          offset += bytes;
        }
      }
    });
  }

  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    const std::size_t width = size_of(call.dtype);
    return start({call.input, call.output, call.send_counts}, [width](Exchange::Round& round) {
      std::vector<std::size_t> received(round.parts.size(), 0);
      for (const Part& from : round.parts) {
        std::size_t sent = 0;
        for (std::size_t to = 0; to < round.parts.size(); ++to) {
          const std::size_t bytes = from.send_counts[to] * width;
          copy(at(round.parts[to].output, received[to]), at(from.input, sent), bytes);
          sent += bytes;
          received[to] += bytes;
        }
      }
    });
  }

  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return start({call.input, call.output}, [=](Exchange::Round& round) {
      std::size_t offset = 0;
      for (std::size_t to = 0; to < round.parts.size(); ++to) {
        const std::size_t bytes = call.counts[to] * size_of(call.dtype);
        reduce(round, offset, call.counts[to], call.dtype, call.op, round.parts[to].output);
        offset += bytes;
      }
    });
  }

  std::unique_ptr<Operation> send(const SendCall& call) override {
    const std::size_t bytes = call.count * size_of(call.dtype);
    return std::make_unique<InprocOperation>(
        exchange_->pass(rank_, call.peer, {.input = call.input}, bytes));
  }

  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    const std::size_t bytes = call.count * size_of(call.dtype);
    return std::make_unique<InprocOperation>(
        exchange_->pass(call.peer, rank_, {.output = call.output}, bytes));
  }

  void abort() noexcept override { exchange_->abort(); }
  void close() override {}

  StatsGroup stats() const override {
    return {"inproc", {{"operations", operations_.load(std::memory_order_relaxed)}}};
  }

 private:
  std::unique_ptr<Operation> start(const Part& part,
                                   const std::function<void(Exchange::Round&)>& work) {
    const std::uint64_t sequence = operations_.fetch_add(1, std::memory_order_relaxed);
    return std::make_unique<InprocOperation>(exchange_->enter(rank_, sequence, part, work));
  }

  const std::shared_ptr<Exchange> exchange_;
  const int rank_;
  std::atomic<std::uint64_t> operations_{0};
};

class InprocBoard final : public Board {
 public:
  InprocBoard(std::shared_ptr<SharedBoard> shared, int rank)
      : shared_(std::move(shared)), rank_(rank) {}

  std::span<Word> words() noexcept override { return shared_->words(); }
  void set_asleep(Sleep sleep) noexcept override { shared_->set_asleep(rank_, sleep); }
  bool has_sleepers(Whom whom) noexcept override {
    for (int other = 0; other < shared_->size(); ++other) {
      if (other != rank_ && is_meant(shared_->sleep_of(other), whom)) return true;
    }
    return false;
  }
  void notify(Whom whom) noexcept override {
    for (int other = 0; other < shared_->size(); ++other) {
      if (other != rank_ && is_meant(shared_->sleep_of(other), whom)) shared_->wake(other);
    }
  }

 private:
  const std::shared_ptr<SharedBoard> shared_;
  const int rank_;
};

}  // namespace

Group::Group(int size) : Group(std::vector<int>(static_cast<std::size_t>(size), 0)) {}

Group::Group(const std::vector<int>& host_of, int most_leaders_below)
    : hub_(std::make_shared<Hub>(host_of, most_leaders_below)),
      exchanges_(std::make_shared<SetExchanges>()),
      board_(std::make_shared<SharedBoard>(hub_)) {}

std::function<std::unique_ptr<Transport>()> Group::transport(int rank) const {
  return [hub = hub_, rank] { return std::make_unique<InprocTransport>(hub, rank); };
}

BackendFactory Group::backend_factory() const {
  BackendFactory factory;
  factory.serves_sets = true;
  factory.create = [exchanges = exchanges_](BackendContext& context) {
    const Topology& topology = *context.topology;
    return std::make_unique<InprocBackend>(exchanges->of_set(context.set, topology.size),
                                           topology.rank);
  };
  return factory;
}

MakeBoard Group::board() const {
  return [board = board_](BoardContext& context) {
    return std::make_unique<InprocBoard>(board, context.topology->rank);
  };
}

void Group::kill(int rank) {
  hub_->leave(rank, "it was killed");
}

}  // namespace ronde::inproc
