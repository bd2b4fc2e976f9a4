// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/config.h"
#include "ronde/plugin/factory.h"
#include "ronde/plugin/transport.h"
#include "tools/bench/subjects/peers.h"

namespace ronde::tool {

/// How long one operation may take before it is given up: far longer than any does.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(2);

/// A backend without the engine around it, as the engine would choose and make it: the ranks meet
/// over the built-in transport, and every operation is started and polled by the caller.
class RawSubject final : public Subject {
 public:
  /// Reads RONDE_* as ronde::init() does. Collective. Throws UsageError for nonsense, GroupError if
  /// a rank does not start; a rank that fails later is left to the launcher, which ends the others.
  explicit RawSubject(std::chrono::milliseconds patience = kPatience);
  ~RawSubject() override;

  const Topology& topology() const { return transport_->topology(); }
  std::string backend() const override { return std::string(backend_->name()); }
  void run(Request request) override;
  Stats stats() const override { return {backend_->stats()}; }
  void quiesce() override {}

  /// The backend itself.
  Backend& host() { return *backend_; }
  /// Makes one for a device beside it, built on it; lives as long. Collective.
  Backend& add(const BackendFactory& factory);
  /// Polls `condition` until it holds. Throws GroupError if a peer is gone, and Error with `what`
  /// once that has taken too long, as where another rank has failed and does not take part.
  void wait_until(const std::function<bool()>& condition, std::string_view what);
  /// Polls until the operation is over; on a device, until its result is there.
  void finish(Operation& operation, std::string_view what);
  /// The device backends release the other ranks' memory, and the ranks synchronise: then each can
  /// free what it has shared. Nothing may run on those backends afterwards. Collective.
  void release_peer_memory();
  /// Ends backend and transport, after release_peer_memory(); every rank calls it.
  void close();

 private:
  BackendContext context();
  std::unique_ptr<Operation> start(const Request& request);
  void look_after_peers();

  const Config config_;
  const std::chrono::milliseconds patience_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Backend>> devices_;
  bool has_released_ = false;
  // Arguments of the operation in progress.
  Segment segment_;
  std::vector<std::size_t> counts_;
};

}  // namespace ronde::tool
