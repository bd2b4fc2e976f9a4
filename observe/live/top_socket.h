// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "observe/base/system_sampler.h"
#include "ronde/plugin/events.h"
#include "ronde/runtime.h"

namespace ronde {

/// Returns the folder with the sockets of a user's ranks: "ronde" in XDG_RUNTIME_DIR or
/// /run/user/UID, or /tmp/ronde-UID.
std::string top_folder();

/// Throws Error unless `folder` belongs to this user alone.
void check_top_folder(const std::string& folder);

/// Sends a line of JSON about a rank to every client of its socket, PID.RANK.sock in top_folder(),
/// or PID.RANK.WORLD.sock: `ronde top`. It is a sink of events only to be called several times a
/// second.
///
/// Thread-safety: none.
class TopSocket final : public EventSink {
 public:
  /// `runtime` outlives its use. Throws Error if there can be no socket.
  TopSocket(const Runtime& runtime, std::string host, ReadGpu read_gpu = {});
  /// Removes the socket.
  ~TopSocket() override;

  /// Answers the clients that have connected, without waiting for them.
  void take(std::span<const Event> events, std::uint64_t lost) override;

 private:
  void open();
  std::string line() const;

  const Runtime& runtime_;
  const std::string host_;
  const std::string path_;
  int listener_ = -1;
  SystemSampler sampler_;
  SystemSample sample_;
  std::chrono::steady_clock::time_point next_sample_{};
};

}  // namespace ronde
