// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "ronde/backend.h"

namespace ronde::test {

/// Another backend under a name of its own, each of whose operations goes through wrap().
class WrappedBackend : public Backend {
 public:
  WrappedBackend(std::string_view name, std::unique_ptr<Backend> inner)
      : inner_(std::move(inner)), name_(name) {}

  std::string_view name() const noexcept override { return name_; }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return wrap([this, call] { return inner_->allreduce(call); }, first_output(call.segments));
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return wrap([this, call] { return inner_->broadcast(call); }, first_output(call.segments));
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return wrap([this, call] { return inner_->allgather(call); }, call.output);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return wrap([this, call] { return inner_->alltoall(call); }, call.output);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return wrap([this, call] { return inner_->reducescatter(call); }, call.output);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return wrap([this, call] { return inner_->send(call); }, nullptr);
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return wrap([this, call] { return inner_->recv(call); }, call.output);
  }
  void abort() noexcept override { inner_->abort(); }
  void close() override { inner_->close(); }
  StatsGroup stats() const override { return inner_->stats(); }

 protected:
  using Start = std::function<std::unique_ptr<Operation>()>;

  /// The operation that `start` starts in the inner backend, and that writes to `output`.
  virtual std::unique_ptr<Operation> wrap(Start start, void* output) = 0;

  const std::unique_ptr<Backend> inner_;

 private:
  static void* first_output(std::span<const Segment> segments) {
    return segments.empty() ? nullptr : segments[0].output;
  }

  const std::string_view name_;
};

}  // namespace ronde::test
