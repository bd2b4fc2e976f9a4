// SPDX-License-Identifier: Apache-2.0
#include "backends/inproc/exchange.h"

#include <cstring>

#include "backends/inproc/reduce.h"

namespace ronde::inproc {

std::shared_ptr<Exchange::Round> Exchange::enter(int rank, std::uint64_t sequence,
                                                 const void* input, void* output,
                                                 const std::function<void(Round&)>& work) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Round>& round = rounds_[sequence];
  if (!round) {
    round = std::make_shared<Round>();
    round->inputs.resize(static_cast<std::size_t>(size_));
    round->outputs.resize(static_cast<std::size_t>(size_));
  }
  round->inputs[static_cast<std::size_t>(rank)] = input;
  round->outputs[static_cast<std::size_t>(rank)] = output;
  const std::shared_ptr<Round> mine = round;
  if (++mine->entered < size_) return mine;
  rounds_.erase(sequence);
  if (aborted_) return mine;
  work(*mine);
  mine->done.store(true, std::memory_order_release);
  return mine;
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
    return start(segment.input, segment.output, [=](Exchange::Round& round) {
      const std::size_t bytes = segment.count * size_of(call.dtype);
      std::vector<std::byte> sum(bytes);
      std::memcpy(sum.data(), round.inputs[0], bytes);
      for (std::size_t rank = 1; rank < round.inputs.size(); ++rank) {
        reduce_into(sum.data(), round.inputs[rank], segment.count, call.dtype, call.op);
      }
      for (void* output : round.outputs) std::memcpy(output, sum.data(), bytes);
    });
  }

  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    const Segment segment = call.segments[0];
    return start(segment.input, segment.output, [=](Exchange::Round& round) {
      const void* source = round.inputs[static_cast<std::size_t>(call.root)];
      for (void* output : round.outputs) {
        if (output != source) std::memcpy(output, source, segment.count * size_of(call.dtype));
      }
    });
  }

  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return start(call.input, call.output, [=](Exchange::Round& round) {
      for (void* output : round.outputs) {
        auto* position = static_cast<std::byte*>(output);
        for (std::size_t rank = 0; rank < round.inputs.size(); ++rank) {
          const std::size_t bytes = call.counts[rank] * size_of(call.dtype);
          if (bytes > 0) std::memcpy(position, round.inputs[rank], bytes);
          position += bytes;
        }
      }
    });
  }

  void abort() noexcept override { exchange_->abort(); }
  void close() override {}

  StatsGroup stats() const override {
    return {"inproc", {{"operations", operations_.load(std::memory_order_relaxed)}}};
  }

 private:
  std::unique_ptr<Operation> start(const void* input, void* output,
                                   const std::function<void(Exchange::Round&)>& work) {
    const std::uint64_t sequence = operations_.fetch_add(1, std::memory_order_relaxed);
    return std::make_unique<InprocOperation>(
        exchange_->enter(rank_, sequence, input, output, work));
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
