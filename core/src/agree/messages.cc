// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/messages.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ronde/error.h"

namespace ronde {
namespace {

// The fields of every message, in the order in which they are sent. Both directions follow from
// this list.

template <typename Item, typename Type>
concept Is = std::is_same_v<std::remove_const_t<Item>, Type>;

auto fields(Is<OpSpec> auto& spec) {
  return std::tie(spec.kind, spec.dtype, spec.op, spec.device, spec.wire_dtype, spec.set, spec.root,
                  spec.prescale, spec.postscale, spec.shape, spec.has_splits, spec.splits,
                  spec.symmetric_place, spec.peer, spec.tag, spec.refusal, spec.name, spec.members);
}
auto fields(Is<KeyedSlot> auto& item) {
  return std::tie(item.key, item.slot, item.contributes, item.digest);
}
auto fields(Is<Announcement> auto& item) {
  return std::tie(item.key, item.spec, item.contributes, item.digest, item.slot);
}
auto fields(Is<ReadyMessage> auto& message) {
  return std::tie(message.decisions_seen, message.cached, message.absent, message.requests,
                  message.expired, message.shutdown, message.shutdown_ns, message.unnamed_before,
                  message.joined, message.after_wait);
}
auto fields(Is<HostReadyMessage::Part> auto& part) {
  return std::tie(part.ranks, part.ready);
}
auto fields(Is<HostReadyMessage> auto& message) {
  return std::tie(message.parts, message.set);
}
auto fields(Is<RankRows> auto& rows) {
  return std::tie(rows.first_dims, rows.members);
}
auto fields(Is<Response> auto& response) {
  return std::tie(response.key, response.error, response.only_rank, response.spec, response.rows,
                  response.contributed, response.slot, response.joined, response.average_over,
                  response.digest, response.missing);
}
auto fields(Is<ScheduledSlot> auto& item) {
  return std::tie(item.slot, item.contributed);
}
auto fields(Is<ScheduleMessage> auto& message) {
  return std::tie(message.buckets, message.patience_ms);
}
auto fields(Is<Tuning> auto& tuning) {
  return std::tie(tuning.fusion_bytes, tuning.cycle_time_ms, tuning.freeze_after_steps);
}
auto fields(Is<DecisionMessage> auto& message) {
  return std::tie(message.set, message.number, message.cached, message.skipped, message.keyed,
                  message.responses, message.shutdown, message.next_unnamed, message.last_joined,
                  message.schedule, message.tuning, message.last_rank, message.sent_ns);
}
auto fields(Is<FailureMessage> auto& message) {
  return std::tie(message.rank, message.text, message.certain, message.in_order, message.overdue);
}
auto fields(Is<RankRange> auto& range) {
  return std::tie(range.first, range.last);
}
auto fields(Is<StalledOperation> auto& operation) {
  return std::tie(operation.name, operation.text, operation.kind, operation.submitted_ranks,
                  operation.missing_ranks, operation.waiting);
}
auto fields(Is<StallMessage> auto& message) {
  return std::tie(message.operations);
}
auto fields(Is<StallLimitMessage> auto& message) {
  return std::tie(message.ns);
}
auto fields(Is<BootstrapMessage> auto& message) {
  return std::tie(message.rank, message.blobs);
}
auto fields(Is<FinishedMessage> auto& message) {
  return std::tie(message.ranks, message.reports);
}
auto fields(Is<ResultEnd> auto& end) {
  return std::tie(end.number, end.text, end.step, end.checksum);
}
auto fields(Is<ResultsMessage> auto& message) {
  return std::tie(message.set, message.rank, message.ends);
}
auto fields(Is<ExchangeKey> auto& key) {
  return std::tie(key.kind, key.set, key.name, key.ranks);
}
auto fields(Is<ExchangeRequest> auto& message) {
  return std::tie(message.key, message.rank, message.blob);
}
auto fields(Is<ExchangeReply> auto& message) {
  return std::tie(message.key, message.to, message.error, message.blobs, message.set,
                  message.members);
}

class Writer {
 public:
  template <typename Value>
  void write(const Value& value) {
    if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      std::apply([this](const auto&... each) { (write(each), ...); }, fields(value));
    }
  }
  void write(const std::string& value) {
    write(std::uint64_t{value.size()});
    bytes_ += value;
  }
  void write(const SpecPtr& value) {
    write(value != nullptr);
    if (value) write(*value);
  }
  void write(const BitVector& value) { write(value.words()); }
  void write(const std::chrono::milliseconds& value) { write(std::int64_t{value.count()}); }
  template <typename Value>
  void write(const std::optional<Value>& value) {
    write(value.has_value());
    if (value) write(*value);
  }
  template <typename Item>
  void write(const std::vector<Item>& items) {
    write(std::uint64_t{items.size()});
    for (const Item& item : items) write(item);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

constexpr Collective last_of(Collective) {
  return static_cast<Collective>(kCollectiveCount - 1);
}
constexpr DataType last_of(DataType) {
  return static_cast<DataType>(kDataTypeCount - 1);
}
constexpr ReduceOp last_of(ReduceOp) {
  return static_cast<ReduceOp>(kReduceOpCount - 1);
}
constexpr DeviceKind last_of(DeviceKind) {
  return DeviceKind::Cuda;
}
constexpr ExchangeKind last_of(ExchangeKind) {
  return ExchangeKind::RemoveSet;
}

/// Returns whether these are ranges of ranks, in their only form.
bool are_ranks(const RankRanges& ranges) {
  std::int64_t least = 0;
  return std::ranges::all_of(ranges, [&least](const RankRange& range) {
    const bool is_valid = range.first >= least && range.last >= range.first;
    least = std::int64_t{range.last} + 2;
    return is_valid;
  });
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Value>
  void read(Value& value) {
    if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) {
      std::memcpy(&value, take(sizeof value).data(), sizeof value);
      if constexpr (std::is_enum_v<Value>) {
        if (value > last_of(value)) fail();
      }
    } else {
      std::apply([this](auto&... each) { (read(each), ...); }, fields(value));
      if constexpr (std::is_same_v<Value, Response>) {
        if (!value.spec && (value.error.empty() || !value.joined.empty())) fail();
      } else if constexpr (std::is_same_v<Value, StalledOperation>) {
        if (!are_ranks(value.submitted_ranks) || !are_ranks(value.missing_ranks)) fail();
      }
    }
  }
  void read(bool& value) { value = next<std::uint8_t>() != 0; }
  void read(std::string& value) { value = take(next<std::uint64_t>()); }
  void read(SpecPtr& value) {
    if (next<bool>()) value = share(next<OpSpec>());
  }
  void read(BitVector& value) { value = BitVector(next<std::vector<std::uint64_t>>()); }
  void read(std::chrono::milliseconds& value) {
    value = std::chrono::milliseconds(next<std::int64_t>());
  }
  template <typename Value>
  void read(std::optional<Value>& value) {
    if (next<bool>()) value = next<Value>();
  }
  template <typename Item>
  void read(std::vector<Item>& items) {
    // A member of a group has none, as unbounded nesting would overflow the stack.
    constexpr bool kAreMembers = Is<Item, OpSpec> || Is<Item, RankRows>;
    const auto count = next<std::uint64_t>();
    // Every item takes a byte at least.
    if (count > bytes_.size() || (kAreMembers && is_in_member_ && count > 0)) fail();
    const bool was_in_member = std::exchange(is_in_member_, is_in_member_ || kAreMembers);
    // An item may take many times the memory of its bytes, so the count alone must not decide how
    // much memory is reserved.
    items.reserve(std::min<std::uint64_t>(count, bytes_.size() / sizeof(Item)));
    for (std::uint64_t i = 0; i < count; ++i) read(items.emplace_back());
    is_in_member_ = was_in_member;
  }

  template <typename Value>
  Value next() {
    Value value{};
    read(value);
    return value;
  }
  void expect_end() const {
    if (!bytes_.empty()) fail();
  }

 private:
  [[noreturn]] static void fail() {
    throw Error("a control message is damaged or comes from another version of Ronde");
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size()) fail();
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
  bool is_in_member_ = false;
};

template <std::size_t kIndex = 0>
Message read_message(Reader& in, std::size_t number) {
  if constexpr (kIndex < std::variant_size_v<Message>) {
    if (number != kIndex) return read_message<kIndex + 1>(in, number);
    return in.next<std::variant_alternative_t<kIndex, Message>>();
  } else {
    throw Error("a control message has an unknown type: do all ranks run one version of Ronde?");
  }
}

}  // namespace

bool DecisionMessage::voids_announcements() const {
  const auto assigns_slot = [](const Response& response) {
    return response.error.empty() && response.slot >= 0;
  };
  return last_joined >= 0 || !schedule.buckets.empty() ||
         std::ranges::any_of(responses, assigns_slot);
}

std::string encode(const Message& message) {
  Writer out;
  out.write(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& alternative) { out.write(alternative); }, message);
  return out.take();
}

Message decode(std::string_view bytes) {
  Reader in(bytes);
  Message message = read_message(in, in.next<std::uint8_t>());
  in.expect_end();
  return message;
}

}  // namespace ronde
