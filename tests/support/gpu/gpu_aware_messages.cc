// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/gpu_aware_messages.h"

#include "ronde/error.h"
#include "tests/support/fakes/fake_cuda_state.h"

namespace ronde::test {
namespace {

using Fault = GpuAwareMessages::Fault;

class NeverEnds final : public Operation {
 public:
  explicit NeverEnds(Fault fault) : fault_(fault) {}
  bool poll() override {
    if (fault_ == Fault::Fails) throw Error("MPI_Test failed with code 75: a bad address");
    return false;
  }

 private:
  const Fault fault_;
};

/// Arrives elsewhere.
class Lost final : public Operation {
 public:
  Lost(Backend& inner, RecvCall call) : memory_(call.count) {
    call.output = memory_.data();
    inner_ = inner.recv(call);
  }
  bool poll() override { return inner_->poll(); }

 private:
  std::vector<std::byte> memory_;
  std::unique_ptr<Operation> inner_;
};

/// Each look at it is a call.
class Called final : public Operation {
 public:
  Called(GpuAwareMessages& shared, std::unique_ptr<Operation> inner)
      : shared_(shared), inner_(std::move(inner)) {}
  bool poll() override {
    bool is_over = false;
    shared_.call([&] { is_over = inner_->poll(); });
    return is_over;
  }

 private:
  GpuAwareMessages& shared_;
  const std::unique_ptr<Operation> inner_;
};

class Messages final : public Backend {
 public:
  Messages(GpuAwareMessages& shared, std::unique_ptr<Backend> inner, int rank)
      : shared_(shared), inner_(std::move(inner)), rank_(rank) {
    ++shared_.made;
  }

  std::string_view name() const noexcept override { return "direct"; }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  std::unique_ptr<Operation> allreduce(const AllreduceCall&) override { return refuse(); }
  std::unique_ptr<Operation> broadcast(const BroadcastCall&) override { return refuse(); }
  std::unique_ptr<Operation> allgather(const AllgatherCall&) override { return refuse(); }
  std::unique_ptr<Operation> alltoall(const AlltoallCall&) override { return refuse(); }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall&) override { return refuse(); }

  std::unique_ptr<Operation> send(const SendCall& call) override {
    return begun([&] { return begin(call); });
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return begun([&] { return begin(call); });
  }
  void abort() noexcept override {
    ++shared_.aborted;
    inner_->abort();
  }
  void close() override {
    ++shared_.closed;
    inner_->close();
  }
  StatsGroup stats() const override { return inner_->stats(); }

 private:
  std::unique_ptr<Operation> begun(const std::function<std::unique_ptr<Operation>()>& begin) {
    std::unique_ptr<Operation> message;
    shared_.call([&] { message = begin(); });
    return std::make_unique<Called>(shared_, std::move(message));
  }
  std::unique_ptr<Operation> begin(const SendCall& call) {
    ++shared_.sent;
    const Fault fault = fault_of(true, call.count);
    if (fault == Fault::NotBegun) throw Error("MPI_Isend failed with code 75: a bad address");
    if (fault != Fault::None) return std::make_unique<NeverEnds>(fault);
    return inner_->send(call);
  }
  std::unique_ptr<Operation> begin(const RecvCall& call) {
    ++shared_.received;
    const Fault fault = fault_of(false, call.count);
    if (fault == Fault::NotBegun) throw Error("MPI_Irecv failed with code 75: a bad address");
    if (fault == Fault::Lost) return std::make_unique<Lost>(*inner_, call);
    if (fault != Fault::None) return std::make_unique<NeverEnds>(fault);
    return inner_->recv(call);
  }
  [[noreturn]] static std::unique_ptr<Operation> refuse() {
    throw Error("an MPI that takes addresses of GPUs was asked for a collective");
  }
  Fault fault_of(bool is_send, std::size_t bytes) const {
    const bool is_meant = rank_ == shared_.faulty_rank && is_send == shared_.of_sends &&
                          (shared_.of_bytes == 0 || shared_.of_bytes == bytes);
    return is_meant ? shared_.fault.load() : Fault::None;
  }

  GpuAwareMessages& shared_;
  const std::unique_ptr<Backend> inner_;
  const int rank_;
};

}  // namespace

class GpuAwareMessages::Wrapping {
 public:
  Wrapping(GpuAwareMessages& messages, vendor::CallWrapper around)
      : messages_(messages),
        around_(std::make_shared<const vendor::CallWrapper>(std::move(around))) {
    const std::lock_guard lock(messages_.mutex_);
    messages_.wrappers_.push_back(around_);
    ++messages_.wrapped;
  }
  ~Wrapping() {
    const std::lock_guard lock(messages_.mutex_);
    std::erase(messages_.wrappers_, around_);
    --messages_.wrapped;
  }

 private:
  GpuAwareMessages& messages_;
  const std::shared_ptr<const vendor::CallWrapper> around_;
};

vendor::WrapCalls GpuAwareMessages::wrap() {
  return [this](vendor::CallWrapper around) {
    return std::make_shared<Wrapping>(*this, std::move(around));
  };
}

void GpuAwareMessages::call(const std::function<void()>& make) {
  std::vector<std::shared_ptr<const vendor::CallWrapper>> around;
  {
    const std::lock_guard lock(mutex_);
    around = wrappers_;
  }
  std::function<void()> within = [&] {
    if (fake::contexts().empty()) ++without_context;
    make();
  };
  for (const auto& each : around) {
    within = [each, inner = std::move(within)] { (*each)(inner); };
  }
  within();
}

BackendFactory GpuAwareMessages::factory(const std::string& problem) {
  BackendFactory factory = inner;
  factory.serves_sets = serves_sets;
  factory.problem = [problem] { return problem; };
  factory.create = [this, make = factory.create](BackendContext& context) {
    return std::make_unique<Messages>(*this, make(context), context.topology->rank);
  };
  return factory;
}

}  // namespace ronde::test
