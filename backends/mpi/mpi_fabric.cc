// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi_fabric.h"

#include <algorithm>
#include <climits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ronde/error.h"

namespace ronde::mpi {

/// Splits a message above max_count into several calls, of the same sizes on both sides.
class MpiFabric::Batch final : public MessageBatch {
 public:
  Batch(MpiFabric& fabric, std::shared_ptr<void> memory)
      : fabric_(fabric), memory_(std::move(memory)) {}
  ~Batch() override {
    if (!requests_.empty()) keep_until_exit(std::move(memory_));
  }

  bool poll() override {
    if (requests_.empty()) return true;
    const auto finished = fabric_.mpi_->test_some(requests_);
    for (const MpiEnvironment::Finished& one : finished) check(posted_[one.index], one);
    if (finished.empty()) return false;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      posted_[kept] = posted_[i];
      ++kept;
    }
    ended_ += requests_.size() - kept;
    requests_.resize(kept);
    posted_.resize(kept);
    return kept == 0;
  }

  std::uint64_t ended() const noexcept override { return ended_; }

 private:
  struct Posted {
    int peer;
    int bytes;
    bool is_received;
  };

  /// Throws if a call has failed, or has received less than expected.
  static void check(const Posted& posted, const MpiEnvironment::Finished& finished) {
    const std::string peer = "rank " + std::to_string(posted.peer);
    if (!finished.error.empty()) {
      throw GroupError(posted.peer, "a message of " + std::to_string(posted.bytes) + " bytes " +
                                        (posted.is_received ? "from " : "to ") + peer + ": " +
                                        finished.error);
    }
    if (!posted.is_received || finished.received_bytes == posted.bytes) return;
    throw GroupError(posted.peer, peer + " sent a message of " +
                                      std::to_string(finished.received_bytes) + " bytes where " +
                                      std::to_string(posted.bytes) + " were expected");
  }

  template <typename Function, typename Pointer>
  void post(const char* name, const Function& function, int peer, MessageTag tag, Pointer* data,
            std::size_t bytes, bool is_received) {
    const int number = static_cast<int>(tag.channel * kStreams + tag.stream);
    while (bytes > 0) {
      const std::size_t count = std::min(bytes, fabric_.max_count_);
      MPI_Request request = MPI_REQUEST_NULL;
      fabric_.mpi_->call(name, function, static_cast<Pointer*>(data), static_cast<int>(count),
                         MPI_BYTE, peer, number, fabric_.communicator_, &request);
      requests_.push_back(request);
      posted_.push_back({peer, static_cast<int>(count), is_received});
      using Bytes = std::conditional_t<std::is_const_v<Pointer>, const std::byte, std::byte>;
      data = static_cast<Bytes*>(data) + count;
      bytes -= count;
    }
  }

  void post_send(int peer, MessageTag tag, const void* from, std::size_t bytes) override {
    post("MPI_Isend", fabric_.mpi_->api().isend, peer, tag, from, bytes, false);
    fabric_.messages_.fetch_add(1, std::memory_order_relaxed);
    fabric_.sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void post_receive(int peer, MessageTag tag, void* to, std::size_t bytes) override {
    post("MPI_Irecv", fabric_.mpi_->api().irecv, peer, tag, to, bytes, true);
  }

  MpiFabric& fabric_;
  std::shared_ptr<void> memory_;
  std::vector<MPI_Request> requests_;
  std::vector<Posted> posted_;  ///< of each request
  std::uint64_t ended_ = 0;
};

MpiFabric::MpiFabric(std::shared_ptr<MpiEnvironment> environment, MPI_Comm communicator,
                     std::size_t max_count, bool owned)
    : mpi_(std::move(environment)),
      communicator_(communicator),
      max_count_(std::clamp<std::size_t>(max_count, 1, INT_MAX)) {
  if (owned) membership_.emplace(mpi_);
}

std::uint32_t MpiFabric::channels() const {
  return (static_cast<std::uint32_t>(mpi_->largest_tag()) + 1) / kStreams;
}

std::unique_ptr<MessageBatch> MpiFabric::make_batch(std::shared_ptr<void> memory) {
  return std::make_unique<Batch>(*this, std::move(memory));
}

bool MpiFabric::progress() {
  mpi_->progress(communicator_);
  return false;
}

void MpiFabric::close() {
  if (!membership_) return;
  mpi_->free(communicator_);
  membership_->leave(true);
}

StatsGroup MpiFabric::stats() const {
  return {"mpi fabric", {{"messages", messages_}, {"sent_bytes", sent_bytes_}}};
}

}  // namespace ronde::mpi
