// SPDX-License-Identifier: Apache-2.0
#include "file_backend.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "ronde/error.h"

namespace file_backend {
namespace {

/// The first number of a message between two ranks; those of collectives are below.
constexpr std::uint64_t kMessages = std::uint64_t{1} << 63;

/// The messages of the ranks, by rank.
using Parts = std::map<int, std::string>;

/// Waits for one message of each writer, then lets `finish` make the result of all of them.
class Gathering final : public ronde::Operation {
 public:
  Gathering(std::shared_ptr<Mailbox> mailbox, std::uint64_t number, std::vector<int> writers,
            Parts parts, std::function<void(const Parts&)> finish)
      : mailbox_(std::move(mailbox)),
        number_(number),
        missing_(std::move(writers)),
        parts_(std::move(parts)),
        finish_(std::move(finish)) {}

  bool poll() override {
    std::erase_if(missing_, [this](int writer) {
      std::optional<std::string> blob = mailbox_->take(number_, writer);
      if (blob) parts_[writer] = std::move(*blob);
      return parts_.contains(writer);
    });
    if (!missing_.empty()) return false;
    finish_(parts_);
    return true;
  }

 private:
  const std::shared_ptr<Mailbox> mailbox_;
  const std::uint64_t number_;
  std::vector<int> missing_;
  Parts parts_;
  const std::function<void(const Parts&)> finish_;
};

template <typename T>
T combine(ronde::ReduceOp op, T a, T b) {
  return op == ronde::ReduceOp::Max ? std::max(a, b) : a + b;  // capabilities() promises no more
}

/// In rank order on every rank, so that all get the same bits.
template <typename T>
void reduce_as(ronde::ReduceOp op, const Parts& parts, void* output) {
  T* const result = static_cast<T*>(output);
  bool first = true;
  for (const auto& [rank, blob] : parts) {
    for (std::size_t i = 0; i < blob.size() / sizeof(T); ++i) {
      T value;
      std::memcpy(&value, blob.data() + i * sizeof(T), sizeof(T));
      result[i] = first ? value : combine(op, result[i], value);
    }
    first = false;
  }
}

void reduce(ronde::DataType dtype, ronde::ReduceOp op, const Parts& parts, void* output) {
  dtype == ronde::DataType::F32 ? reduce_as<float>(op, parts, output)
                                : reduce_as<double>(op, parts, output);
}

void concatenate(const Parts& parts, void* output) {
  char* end = static_cast<char*>(output);
  for (const auto& [rank, blob] : parts) end = std::copy(blob.begin(), blob.end(), end);
}

std::string blob_of(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

}  // namespace

FileBackend::FileBackend(const ronde::Topology& topology, const std::filesystem::path& folder)
    : rank_(topology.rank),
      size_(topology.size),
      mailbox_(std::make_shared<Mailbox>(folder, topology.rank)),
      sent_(static_cast<std::size_t>(topology.size), 0),
      received_(static_cast<std::size_t>(topology.size), 0) {}

ronde::Capabilities FileBackend::capabilities() const {
  ronde::Capabilities can;
  for (const auto dtype :
       {ronde::DataType::F16, ronde::DataType::BF16, ronde::DataType::F32, ronde::DataType::F64}) {
    can.dtypes.set(static_cast<std::size_t>(dtype));
  }
  can.ops.reset();
  for (const auto op : {ronde::ReduceOp::Sum, ronde::ReduceOp::Max}) {
    can.ops.set(static_cast<std::size_t>(op));
  }
  can.wants_packed = true;  // one segment, in place, no scales...
  can.widen_halves = true;  // ...and f32 for f16 and bf16
  return can;
}

std::unique_ptr<ronde::Operation> FileBackend::allreduce(const ronde::AllreduceCall& call) {
  const ronde::Segment segment = call.segments[0];  // packed: there is one, in place
  std::string mine = blob_of(segment.input, segment.count * size_of(call.dtype));
  const std::uint64_t number = operations_++;
  mailbox_->post(number, mine, others());
  posted_bytes_ += mine.size();
  return std::make_unique<Gathering>(
      mailbox_, number, others(), Parts{{rank_, std::move(mine)}},
      [segment, dtype = call.dtype, op = call.op](const Parts& parts) {
        reduce(dtype, op, parts, segment.output);
      });
}

std::unique_ptr<ronde::Operation> FileBackend::broadcast(const ronde::BroadcastCall& call) {
  const ronde::Segment segment = call.segments[0];
  const std::size_t bytes = segment.count * size_of(call.dtype);
  const std::uint64_t number = operations_++;
  Parts parts;
  if (rank_ == call.root) {
    parts[rank_] = blob_of(segment.input, bytes);
    mailbox_->post(number, parts[rank_], others());
    posted_bytes_ += bytes;
  }
  return std::make_unique<Gathering>(mailbox_, number, std::vector<int>{call.root},
                                     std::move(parts),
                                     [segment, bytes, root = call.root](const Parts& sent) {
                                       if (bytes > 0)
                                         std::memcpy(segment.output, sent.at(root).data(), bytes);
                                     });
}

std::unique_ptr<ronde::Operation> FileBackend::allgather(const ronde::AllgatherCall& call) {
  const std::size_t bytes = call.counts[static_cast<std::size_t>(rank_)] * size_of(call.dtype);
  std::string mine = blob_of(call.input, bytes);
  const std::uint64_t number = operations_++;
  mailbox_->post(number, mine, others());
  posted_bytes_ += mine.size();
  return std::make_unique<Gathering>(
      mailbox_, number, others(), Parts{{rank_, std::move(mine)}},
      [output = call.output](const Parts& parts) { concatenate(parts, output); });
}

std::unique_ptr<ronde::Operation> FileBackend::alltoall(const ronde::AlltoallCall& call) {
  const std::uint64_t number = operations_++;
  std::string mine = post_parts(number, call.input, call.send_counts, size_of(call.dtype));
  return std::make_unique<Gathering>(
      mailbox_, number, others(), Parts{{rank_, std::move(mine)}},
      [output = call.output](const Parts& parts) { concatenate(parts, output); });
}

std::unique_ptr<ronde::Operation> FileBackend::reducescatter(const ronde::ReducescatterCall& call) {
  const std::uint64_t number = operations_++;
  std::string mine = post_parts(number, call.input, call.counts, size_of(call.dtype));
  return std::make_unique<Gathering>(mailbox_, number, others(), Parts{{rank_, std::move(mine)}},
                                     [output = call.output, dtype = call.dtype, op = call.op](
                                         const Parts& parts) { reduce(dtype, op, parts, output); });
}

std::unique_ptr<ronde::Operation> FileBackend::send(const ronde::SendCall& call) {
  const std::string blob = blob_of(call.input, call.count * size_of(call.dtype));
  const std::uint64_t number = kMessages + sent_.at(static_cast<std::size_t>(call.peer))++;
  mailbox_->post(number, blob, {call.peer});
  posted_bytes_ += blob.size();
  return std::make_unique<Gathering>(mailbox_, number, std::vector<int>{}, Parts{},
                                     [](const Parts&) {});
}

std::unique_ptr<ronde::Operation> FileBackend::recv(const ronde::RecvCall& call) {
  const std::uint64_t number = kMessages + received_.at(static_cast<std::size_t>(call.peer))++;
  return std::make_unique<Gathering>(
      mailbox_, number, std::vector<int>{call.peer}, Parts{},
      [output = call.output](const Parts& parts) { concatenate(parts, output); });
}

std::string FileBackend::post_parts(std::uint64_t number, const void* data,
                                    std::span<const std::size_t> counts, std::size_t width) {
  const auto* from = static_cast<const char*>(data);
  std::string own;
  for (int rank = 0; rank < size_; ++rank) {
    std::string part = blob_of(from, counts[static_cast<std::size_t>(rank)] * width);
    from += part.size();
    if (rank == rank_) {
      own = std::move(part);
    } else {
      mailbox_->post(number, part, {rank});
      posted_bytes_ += part.size();
    }
  }
  return own;
}

void FileBackend::abort() noexcept {
  mailbox_->remove();
}

ronde::StatsGroup FileBackend::stats() const {
  return {"file", {{"posted_bytes", posted_bytes_.load()}}};
}

std::vector<int> FileBackend::others() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) ranks.push_back(rank);
  }
  return ranks;
}

ronde::BackendFactory file_backend_factory() {
  ronde::BackendFactory factory;
  factory.device = ronde::DeviceKind::Cpu;
  factory.priority = -1;  // `auto` never takes it while there is another
  factory.suits = [](const ronde::Topology& topology) { return topology.hosts() == 1; };
  factory.create = [](ronde::BackendContext& context) {
    // Rank 0 makes the folder; `exchange` tells everybody its name. It is empty if that failed, so
    // that all ranks fail alike.
    std::string folder;
    if (context.topology->rank == 0) {
      std::string pattern = std::filesystem::temp_directory_path() / "ronde-file-XXXXXX";
      if (mkdtemp(pattern.data()) != nullptr) folder = pattern;
    }
    folder = context.exchange(folder).at(0);
    if (folder.empty()) throw ronde::Error("rank 0 could not make a temporary folder");
    return std::make_unique<FileBackend>(*context.topology, folder);
  };
  return factory;
}

}  // namespace file_backend
