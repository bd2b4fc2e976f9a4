// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fusion_buffer.h"
#include "ronde/backend.h"

namespace ronde {

/// Makes a backend that takes whole segment lists take a wire_dtype too, if it can reduce that type
/// (Capabilities::wire_dtypes): converts into a buffer, lets the backend work on it in place, and
/// converts back, in chunks. Everything else is handed on as it is.
///
/// Thread-safety: as Backend. One operation at a time.
class ConvertingBackend final : public Backend {
 public:
  /// Host memory only. `buffer_bytes`: limit of the buffer.
  ConvertingBackend(std::unique_ptr<Backend> inner, std::size_t buffer_bytes);

  std::string_view name() const noexcept override { return inner_->name(); }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return inner_->broadcast(call);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return inner_->allgather(call);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return inner_->alltoall(call);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return inner_->reducescatter(call);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override { return inner_->send(call); }
  std::unique_ptr<Operation> recv(const RecvCall& call) override { return inner_->recv(call); }
  std::shared_ptr<SymmetricHeap> symmetric_heap() const override {
    return inner_->symmetric_heap();
  }
  void abort() noexcept override;
  void close() override { inner_->close(); }
  StatsGroup stats() const override { return inner_->stats(); }

 private:
  class Converted;

  const std::unique_ptr<Backend> inner_;
  const Capabilities inner_capabilities_;
  FusionBuffer buffer_;
};

}  // namespace ronde
