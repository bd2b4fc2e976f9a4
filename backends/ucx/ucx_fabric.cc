// SPDX-License-Identifier: Apache-2.0
#include "backends/ucx/ucx_fabric.h"

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

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

/// What UCX's callbacks touch: it outlives the batch if messages are in progress.
class BatchState {
 public:
  struct Message {
    BatchState* batch;
    int peer;
    std::size_t bytes;
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
  std::deque<Message> messages;  ///< since the batch was empty; never move
  std::size_t in_progress = 0;
  std::uint64_t ended = 0;
  std::optional<Failure> failure;  ///< the first

  static void end_sent(const Message& message, ucs_status_t status) {
    UcxWorker::Counters& counters = message.batch->worker->counters;
    counters.messages.fetch_add(1, std::memory_order_relaxed);
    counters.sent_bytes.fetch_add(message.bytes, std::memory_order_relaxed);
    message.batch->end(message, status, message.bytes);
  }
  static void end_received(const Message& message, ucs_status_t status, std::size_t got) {
    UcxWorker::Counters& counters = message.batch->worker->counters;
    counters.received_messages.fetch_add(1, std::memory_order_relaxed);
    counters.received_bytes.fetch_add(got, std::memory_order_relaxed);
    message.batch->end(message, status, got);
  }

  // Callbacks of UCX.
  static void on_sent(void* request, ucs_status_t status, void* user_data) {
    const Message& message = *static_cast<Message*>(user_data);
    message.batch->worker->api().request_free(request);
    end_sent(message, status);
  }
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* user_data) {
    const Message& message = *static_cast<Message*>(user_data);
    const std::size_t got = info->length;
    message.batch->worker->api().request_free(request);
    end_received(message, status, got);
  }

 private:
  void end(const Message& message, ucs_status_t status, std::size_t got) {
    --in_progress;
    ++ended;
    if (status == UCS_OK && got != message.bytes) status = UCS_ERR_MESSAGE_TRUNCATED;
    if (status != UCS_OK && !failure) failure = Failure{message.peer, status, message.bytes, got};
  }
};

class UcxBatch final : public MessageBatch {
 public:
  UcxBatch(std::shared_ptr<UcxWorker> worker, std::uint16_t job, std::shared_ptr<void> memory)
      : worker_(std::move(worker)),
        job_(job),
        state_(std::make_shared<BatchState>(std::move(memory), worker_.get())) {}

  ~UcxBatch() override {
    if (state_->in_progress > 0) worker_->keep(std::move(state_));
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
    BatchState::Message& message = add(peer, bytes);
    ucp_request_param_t parameters = parameters_of(message);
    parameters.cb.send = BatchState::on_sent;
    const auto request = worker_->api().tag_send(connection, from, bytes, bits, &parameters);
    if (!UCS_PTR_IS_PTR(request)) BatchState::end_sent(message, UCS_PTR_RAW_STATUS(request));
  }

  void post_receive(int peer, MessageTag tag, void* to, std::size_t bytes) override {
    const ucp_tag_t bits = tag_of(job_, tag, peer);
    static_cast<void>(worker_->connection(peer));  // UCX watches over it
    BatchState::Message& message = add(peer, bytes);
    ucp_request_param_t parameters = parameters_of(message);
    // Also of a message that is here already: UCX 1.13 tells its size to the callback only.
    parameters.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    parameters.cb.recv = BatchState::on_received;
    const auto request =
        worker_->api().tag_receive(worker_->handle(), to, bytes, bits, ~ucp_tag_t{0}, &parameters);
    if (UCS_PTR_IS_ERR(request)) {
      BatchState::end_received(message, UCS_PTR_RAW_STATUS(request), 0);
    }
  }

  BatchState::Message& add(int peer, std::size_t bytes) {
    ++state_->in_progress;
    return state_->messages.emplace_back(BatchState::Message{state_.get(), peer, bytes});
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

/// For what it holds UCX may still touch, or not be destroyed.
void keep_for_ever(std::shared_ptr<UcxWorker> worker) {
  static std::mutex mutex;
  static auto* const graveyard = new std::vector<std::shared_ptr<UcxWorker>>();
  const std::lock_guard lock(mutex);
  graveyard->push_back(std::move(worker));
}

}  // namespace

UcxFabric::UcxFabric(std::shared_ptr<UcxWorker> worker, std::uint16_t job,
                     const UcxOptions& options)
    : worker_(std::move(worker)),
      job_(job),
      close_bound_(options.close_bound),
      traits_{.rdma = worker_->has_rdma(), .device_memory = worker_->takes_device_memory()} {
  worker_->check(worker_->api().worker_descriptor(worker_->handle(), &descriptor_),
                 "ucp_worker_get_efd");
}

UcxFabric::~UcxFabric() {
  if (!closed_ || worker_->keeps_memory()) keep_for_ever(worker_);
}

std::unique_ptr<MessageBatch> UcxFabric::make_batch(std::shared_ptr<void> memory) {
  return std::make_unique<UcxBatch>(worker_, job_, std::move(memory));
}

std::shared_ptr<void> UcxFabric::register_memory(void* begin, std::size_t bytes) {
  return traits_.rdma ? ucx::register_memory(worker_, begin, bytes) : nullptr;
}

bool UcxFabric::prepare_sleep() {
  const ucs_status_t status = worker_->api().worker_arm(worker_->handle());
  if (status == UCS_ERR_BUSY) return false;
  worker_->check(status, "ucp_worker_arm");
  return true;
}

void UcxFabric::close() {
  closed_ = worker_->close(close_bound_);
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
