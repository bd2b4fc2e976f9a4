// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mailbox.h"
#include "ronde/backend.h"

namespace file_backend {

/// The example of docs/adding_a_backend.md: a backend whose ranks exchange files. It works, and it
/// is as slow as that sounds.
class FileBackend final : public ronde::Backend {
 public:
  /// `folder` must be there already and be seen by all ranks.
  FileBackend(const ronde::Topology& topology, const std::filesystem::path& folder);

  std::string_view name() const noexcept override { return "file"; }
  ronde::Capabilities capabilities() const override;

  std::unique_ptr<ronde::Operation> allreduce(const ronde::AllreduceCall& call) override;
  std::unique_ptr<ronde::Operation> broadcast(const ronde::BroadcastCall& call) override;
  std::unique_ptr<ronde::Operation> allgather(const ronde::AllgatherCall& call) override;
  std::unique_ptr<ronde::Operation> alltoall(const ronde::AlltoallCall& call) override;
  std::unique_ptr<ronde::Operation> reducescatter(const ronde::ReducescatterCall& call) override;
  std::unique_ptr<ronde::Operation> send(const ronde::SendCall& call) override;
  std::unique_ptr<ronde::Operation> recv(const ronde::RecvCall& call) override;

  void abort() noexcept override;
  void close() override {}
  ronde::StatsGroup stats() const override;

 private:
  std::vector<int> others() const;
  /// Leaves each rank its part of `data`; returns this rank's own. `width`: bytes of an element.
  std::string post_parts(std::uint64_t number, const void* data,
                         std::span<const std::size_t> counts, std::size_t width);

  const int rank_;
  const int size_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::uint64_t operations_ = 0;  ///< so far: numbers the collectives, equally on every rank
  /// Messages so far, by the other rank: only the two ranks number them.
  std::vector<std::uint64_t> sent_, received_;
  std::atomic<std::uint64_t> posted_bytes_ = 0;
};

/// Returns what ronde::register_backend() takes.
ronde::BackendFactory file_backend_factory();

}  // namespace file_backend
