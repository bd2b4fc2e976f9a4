// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc/exchange.h"

#include <array>
#include <cstring>

#include "ronde/error.h"
#include "ronde/kernels.h"

namespace ronde::inproc {

std::shared_ptr<Exchange::Round> Exchange::enter(int rank, std::uint64_t sequence, const Part& part,
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

std::shared_ptr<Exchange::Round> Exchange::pass(int from, int to, const Part& part,
                                                std::size_t bytes) {
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

void Exchange::abort() noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
}

namespace {

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

}  // namespace

std::unique_ptr<Backend> make_backend(std::shared_ptr<Exchange> exchange, int rank) {
  return std::make_unique<InprocBackend>(std::move(exchange), rank);
}

}  // namespace ronde::inproc
