// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "ronde/error.h"
#include "tests/support/fakes/fake_cuda_state.h"
#include "tests/support/fakes/wrapped_backend.h"
#include "tests/support/inproc/inproc.h"

namespace ronde::test {

/// Messages of an MPI that takes addresses of GPUs, between ranks that are threads: the memory of
/// fake GPUs is the host's. They can be made to fail as such libraries do.
///
/// Thread-safety: full, but for what is set before ranks start.
struct GpuAwareMessages {
  explicit GpuAwareMessages(const inproc::Group& group) : inner(group.backend_factory()) {}
  /// `problem`: why the rank that uses it cannot have it, if so.
  BackendFactory factory(const std::string& problem = {}) {
    BackendFactory factory = inner;
    factory.serves_sets = false;
    factory.problem = [problem] { return problem; };
    factory.create = [this, make = factory.create](BackendContext& context) {
      const bool is_faulty = context.topology->rank == faulty_rank;
      return std::make_unique<OfRank>(*this, make(context), is_faulty);
    };
    return factory;
  }

  /// What a message of the faulty rank does in place of arriving.
  enum class Fault { None, NotBegun, Fails, Hangs };

  const BackendFactory inner;
  int faulty_rank = -1;
  std::atomic<Fault> fault{Fault::None};
  bool of_sends = false;  ///< else of receives
  std::atomic<int> made{0}, closed{0}, aborted{0}, begun{0};
  /// Calls that begin or poll messages on a thread without the context of a GPU.
  std::atomic<int> without_context{0};

 private:
  class Message final : public Operation {
   public:
    /// Null `inner`: it does not arrive.
    Message(GpuAwareMessages& shared, std::unique_ptr<Operation> inner, Fault fault)
        : shared_(shared), inner_(std::move(inner)), fault_(fault) {}
    bool poll() override {
      if (fake::contexts.empty()) ++shared_.without_context;
      if (fault_ == Fault::Fails) throw Error("MPI_Test failed with code 75: a bad address");
      return inner_ && inner_->poll();
    }

   private:
    GpuAwareMessages& shared_;
    const std::unique_ptr<Operation> inner_;
    const Fault fault_;
  };

  class OfRank final : public WrappedBackend {
   public:
    OfRank(GpuAwareMessages& shared, std::unique_ptr<Backend> inner, bool is_faulty)
        : WrappedBackend("direct", std::move(inner)), shared_(shared), is_faulty_(is_faulty) {
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
      if (fake::contexts.empty()) ++shared_.without_context;
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
};

}  // namespace ronde::test
