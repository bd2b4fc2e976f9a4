// SPDX-License-Identifier: Apache-2.0
#include "backends/ucx/ucx_fabric.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "core/src/base/caller.h"
#include "core/src/base/fields.h"
#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::ucx {
namespace {

ucp_tag_t tag_of(std::uint16_t job, MessageTag tag, int source) {
  if (tag.channel >> kChannelBits != 0 || tag.stream >= Fabric::kStreams) {
    throw Error("a message of channel " + std::to_string(tag.channel) + ", stream " +
                std::to_string(tag.stream) + " does not fit into a tag of UCX");
  }
  ucp_tag_t bits = job;
  bits = bits << kChannelBits | tag.channel;
  bits = bits << kStreamBits | tag.stream;
  return bits << kRankBits | static_cast<ucp_tag_t>(source);
}

/// Workers of groups that have failed, until this process starts another one. UCX may still use the
/// memory of their messages, and ranks that have not heard of the failure would take the end of a
/// connection for another one.
class FailedWorkers {
 public:
  static FailedWorkers& instance() {
    static auto* const kInstance = new FailedWorkers();
    return *kInstance;
  }

  void keep(std::shared_ptr<UcxWorker> worker) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(workers_, worker) == workers_.end())
      workers_.push_back(std::move(worker));
  }

  void close() {
    if (fork_depth() != fork_depth_) return;  // those of a parent are not this process's
    constexpr std::chrono::milliseconds kTime{100};
    std::vector<std::shared_ptr<UcxWorker>> workers;
    {
      const std::lock_guard lock(mutex_);
      workers.swap(workers_);
    }
    for (auto& worker : workers) {
      if (!worker->close(kTime)) keep(std::move(worker));
    }
  }

 private:
  const int fork_depth_ = fork_depth();
  std::mutex mutex_;
  std::vector<std::shared_ptr<UcxWorker>> workers_;  ///< guarded by mutex_
};

/// The state that UCX's callbacks use; outlives the batch if messages are in progress.
struct BatchState {
  struct Message {
    BatchState* batch;
    int peer;
    std::size_t bytes;
    bool is_received;
  };
  struct Failure {
    int peer;
    ucs_status_t status;
    std::size_t expected, got;
  };

  BatchState(std::shared_ptr<void> memory_of_messages, UcxWorker* its_worker)
      : memory(std::move(memory_of_messages)), worker(its_worker) {}

  const std::shared_ptr<void> memory;
  UcxWorker* const worker;
  std::deque<Message> messages;  ///< posted since the batch was empty; never move
  std::size_t in_progress = 0;
  std::uint64_t ended = 0;
  std::optional<Failure> failure;  ///< the first

  static void finish(const Message& message, ucs_status_t status, std::size_t got) {
    BatchState& batch = *message.batch;
    constexpr auto kRelaxed = std::memory_order_relaxed;
    UcxWorker::Counters& counters = batch.worker->counters;
    (message.is_received ? counters.received_messages : counters.messages).fetch_add(1, kRelaxed);
    (message.is_received ? counters.received_bytes : counters.sent_bytes).fetch_add(got, kRelaxed);
    --batch.in_progress;
    ++batch.ended;
    if (status == UCS_OK && got != message.bytes) status = UCS_ERR_MESSAGE_TRUNCATED;
    if (status == UCS_OK || batch.failure) return;
    batch.failure = Failure{message.peer, status, message.bytes, got};
  }

  // Callbacks of UCX.
  static void on_sent(void* request, ucs_status_t status, void* user_data) {
    const Message& message = *static_cast<Message*>(user_data);
    message.batch->worker->api().request_free(request);
    finish(message, status, message.bytes);
  }
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* user_data) {
    const Message& message = *static_cast<Message*>(user_data);
    const std::size_t got = info->length;
    message.batch->worker->api().request_free(request);
    finish(message, status, got);
  }
};

class UcxBatch final : public MessageBatch {
 public:
  UcxBatch(std::shared_ptr<UcxWorker> worker, std::uint16_t job, std::shared_ptr<void> memory)
      : worker_(std::move(worker)),
        job_(job),
        state_(std::make_shared<BatchState>(std::move(memory), worker_.get())) {}

  ~UcxBatch() override {
    if (state_->in_progress == 0) return;
    worker_->keep(std::move(state_));
    // That memory may own the fabric, which then does not do it.
    if (worker_->is_aborted()) FailedWorkers::instance().keep(worker_);
  }

  bool poll() override {
    worker_->progress();
    if (state_->failure) throw_failure();
    if (state_->in_progress == 0) {
      state_->messages.clear();
      return true;
    }
    worker_->check_peers();
    return false;
  }

  std::uint64_t ended() const noexcept override { return state_->ended; }

 private:
  void post_send(int peer, MessageTag tag, const void* from, std::size_t bytes) override {
    const ucp_tag_t bits = tag_of(job_, tag, worker_->rank());
    const ucp_ep_h connection = worker_->connection(peer);
    BatchState::Message& message = add(peer, bytes, false);
    ucp_request_param_t parameters = parameters_of(message);
    parameters.cb.send = BatchState::on_sent;
    const auto request = worker_->api().tag_send(connection, from, bytes, bits, &parameters);
    if (!UCS_PTR_IS_PTR(request)) BatchState::finish(message, UCS_PTR_RAW_STATUS(request), bytes);
  }

  void post_receive(int peer, MessageTag tag, void* to, std::size_t bytes) override {
    const ucp_tag_t bits = tag_of(job_, tag, peer);
    static_cast<void>(worker_->connection(peer));  // lets UCX report its loss
    BatchState::Message& message = add(peer, bytes, true);
    ucp_request_param_t parameters = parameters_of(message);
    // UCX 1.13 gives the size to the callback only, even for a message that has already arrived.
    parameters.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    parameters.cb.recv = BatchState::on_received;
    const auto request =
        worker_->api().tag_receive(worker_->handle(), to, bytes, bits, ~ucp_tag_t{0}, &parameters);
    if (UCS_PTR_IS_ERR(request)) {
      BatchState::finish(message, UCS_PTR_RAW_STATUS(request), 0);
    }
  }

  BatchState::Message& add(int peer, std::size_t bytes, bool is_received) {
    ++state_->in_progress;
    return state_->messages.emplace_back(
        BatchState::Message{state_.get(), peer, bytes, is_received});
  }
  static ucp_request_param_t parameters_of(BatchState::Message& message) {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    parameters.user_data = &message;
    return parameters;
  }

  [[noreturn]] void throw_failure() const {
    const BatchState::Failure& failure = *state_->failure;
    if (failure.status != UCS_ERR_MESSAGE_TRUNCATED) {
      worker_->throw_lost(failure.peer, failure.status);
    }
    throw GroupError(failure.peer,
                     "rank " + std::to_string(worker_->rank()) + " expected a message of " +
                         std::to_string(failure.expected) + " bytes from rank " +
                         std::to_string(failure.peer) + " and got one of " +
                         std::to_string(failure.got) +
                         ": the two do not run the same operation. Compare their programs and "
                         "their RONDE_* variables");
  }

  const std::shared_ptr<UcxWorker> worker_;
  const std::uint16_t job_;
  std::shared_ptr<BatchState> state_;
};

}  // namespace

UcxFabric::UcxFabric(std::shared_ptr<UcxWorker> worker, std::uint16_t job)
    : worker_(std::move(worker)),
      job_(job),
      traits_{.rdma = worker_->has_rdma(), .device_memory = worker_->takes_device_memory()} {
  worker_->check(worker_->api().worker_descriptor(worker_->handle(), &descriptor_),
                 "ucp_worker_get_efd");
}

UcxFabric::~UcxFabric() {
  if (!closed_) FailedWorkers::instance().keep(worker_);
}

std::unique_ptr<MessageBatch> UcxFabric::make_batch(std::shared_ptr<void> memory) {
  return std::make_unique<UcxBatch>(worker_, job_, std::move(memory));
}

std::shared_ptr<void> UcxFabric::register_memory(void* begin, std::size_t bytes) {
  ucp_mem_h memory = traits_.rdma ? worker_->map_memory(begin, bytes) : nullptr;
  if (memory == nullptr) return nullptr;
  return {memory, [worker = worker_](ucp_mem_h mapped) { worker->unmap_memory(mapped); }};
}

bool UcxFabric::prepare_sleep() {
  const ucs_status_t status = worker_->api().worker_arm(worker_->handle());
  if (status == UCS_ERR_BUSY) return false;
  worker_->check(status, "ucp_worker_arm");
  return true;
}

void UcxFabric::close() {
  constexpr std::chrono::seconds kTimeout{3};
  closed_ = worker_->close(kTimeout);
}

StatsGroup UcxFabric::stats() const {
  const UcxWorker::Counters& counters = worker_->counters;
  return {"ucx",
          {{"connections", counters.connections},
           {"messages", counters.messages},
           {"sent_bytes", counters.sent_bytes},
           {"received_messages", counters.received_messages},
           {"received_bytes", counters.received_bytes}}};
}

}  // namespace ronde::ucx

namespace ronde {
namespace {

using Job = std::uint16_t;

std::shared_ptr<ucx::UcxWorker> make_worker(const Topology& topology, const UcxOptions& options) {
  const ucx::LoadedUcx ucx = ucx::load_ucx(options.symbols);
  if (!ucx.api) throw UsageError(ucx.problem);
  if (topology.size > 1 << ucx::kRankBits) {
    throw UsageError("the fabric of UCX connects " + std::to_string(1 << ucx::kRankBits) +
                     " ranks at most");
  }
  return std::make_shared<ucx::UcxWorker>(ucx.api, topology.rank, topology.size,
                                          options.ignored_transports);
}

std::unique_ptr<Fabric> make_fabric(BackendContext& context, const UcxOptions& options) {
  std::shared_ptr<ucx::UcxWorker> worker;
  // The fields are a problem, if there is one; a random number, of which rank 0's identifies the
  // job; and the address. A rank without UCX takes part, as the others would wait for it.
  std::string own;
  try {
    worker = make_worker(*context.topology, options);
    own = pack_fields({"", random_bytes(sizeof(Job)), worker->address()});
  } catch (const std::exception& error) {
    own = pack_fields({error.what(), "", ""});
  }
  Job job = 0;
  std::vector<std::string> addresses;
  for (const std::string& blob : context.exchange(own)) {
    const auto rank = static_cast<int>(addresses.size());
    std::vector<std::string> fields = unpack_fields_from(rank, blob, 3);
    if (!fields[0].empty()) {
      throw UsageError("rank " + std::to_string(rank) + " cannot use UCX: " + fields[0]);
    }
    if (fields[1].size() != sizeof job) fail_unreadable(rank);
    if (rank == 0) std::memcpy(&job, fields[1].data(), sizeof job);
    addresses.push_back(std::move(fields[2]));
  }
  worker->set_addresses(std::move(addresses));
  ucx::FailedWorkers::instance().close();
  return std::make_unique<ucx::UcxFabric>(std::move(worker), job);
}

}  // namespace

std::function<std::unique_ptr<Fabric>(BackendContext&)> ucx_fabric_maker(
    const UcxOptions& options) {
  return [options](BackendContext& context) { return make_fabric(context, options); };
}

std::string ucx_problem(const vendor::SymbolLookup& symbols) {
  return ucx::load_ucx(symbols).problem;
}

std::string ucx_version(const vendor::SymbolLookup& symbols) {
  return ucx::load_ucx(symbols).version;
}

}  // namespace ronde
