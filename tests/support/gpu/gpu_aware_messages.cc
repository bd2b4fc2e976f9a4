// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/gpu_aware_messages.h"

#include "ronde/error.h"
#include "tests/support/fakes/fake_cuda_state.h"
#include "tests/support/fakes/wrapped_backend.h"

namespace ronde::test {
namespace {

using Fault = GpuAwareMessages::Fault;

class Message final : public Operation {
 public:
  /// Null `inner`: it does not arrive.
  Message(GpuAwareMessages& shared, std::unique_ptr<Operation> inner, Fault fault)
      : shared_(shared), inner_(std::move(inner)), fault_(fault) {}
  bool poll() override {
    if (fake::contexts().empty()) ++shared_.without_context;
    if (fault_ == Fault::Fails) throw Error("MPI_Test failed with code 75: a bad address");
    return inner_ && inner_->poll();
  }

 private:
  GpuAwareMessages& shared_;
  const std::unique_ptr<Operation> inner_;
  const Fault fault_;
};

class Messages final : public WrappedBackend {
 public:
  Messages(GpuAwareMessages& shared, std::unique_ptr<Backend> inner, int rank)
      : WrappedBackend("direct", std::move(inner)),
        shared_(shared),
        is_faulty_(rank == shared.faulty_rank) {
    ++shared_.made;
  }

  std::unique_ptr<Operation> send(const SendCall& call) override {
    return begin(true, "MPI_Isend", [&] { return inner_->send(call); });
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return begin(false, "MPI_Irecv", [&] { return inner_->recv(call); });
  }
  void abort() noexcept override {
    ++shared_.aborted;
    WrappedBackend::abort();
  }
  void close() override {
    ++shared_.closed;
    WrappedBackend::close();
  }

 private:
  template <typename Start>
  std::unique_ptr<Operation> begin(bool is_send, const std::string& call, Start start) {
    ++shared_.begun;
    if (fake::contexts().empty()) ++shared_.without_context;
    const bool fails = is_faulty_ && is_send == shared_.of_sends;
    const Fault fault = fails ? shared_.fault.load() : Fault::None;
    if (fault == Fault::NotBegun) throw Error(call + " failed with code 75: a bad address");
    return std::make_unique<Message>(shared_, fault == Fault::None ? start() : nullptr, fault);
  }
  std::unique_ptr<Operation> wrap(Start, void* /*output*/) override {
    throw Error("an MPI that takes addresses of GPUs was asked for a collective");
  }

  GpuAwareMessages& shared_;
  const bool is_faulty_;
};

}  // namespace

BackendFactory GpuAwareMessages::factory(const std::string& problem) {
  BackendFactory factory = inner;
  factory.serves_sets = false;
  factory.problem = [problem] { return problem; };
  factory.create = [this, make = factory.create](BackendContext& context) {
    return std::make_unique<Messages>(*this, make(context), context.topology->rank);
  };
  return factory;
}

}  // namespace ronde::test
