// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "backends/shm/slots/chunks.h"
#include "backends/shm/slots/slot_operation.h"

namespace ronde::shm {

/// The root stages; the others copy out of its slots.
class Broadcast final : public SlotOperation {
 public:
  Broadcast(std::shared_ptr<SlotBufferContext> context, const BroadcastCall& call);

 private:
  bool all_staged() const override { return !is_root_ || walk_.at_end(); }
  bool all_consumed() const override { return is_root_ || walk_.at_end(); }
  void stage(std::uint64_t round) override;
  bool may_consume(std::uint64_t round) override {
    return buffer().staged_by(root_, absolute(round));
  }
  void consume(std::uint64_t round) override;

  const std::size_t element_bytes_;
  const std::size_t root_;
  const bool is_root_;
  StoreChoice::Use stores_;
  ChunkWalk walk_;
};

}  // namespace ronde::shm
