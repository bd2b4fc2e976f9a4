// SPDX-License-Identifier: Apache-2.0
#include "messages.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ronde/error.h"

namespace ronde {
namespace {

constexpr auto kLastCollective = static_cast<Collective>(kCollectiveCount - 1);

class Writer {
 public:
  template <typename Number>
  void number(Number value) {
    static_assert(std::is_trivially_copyable_v<Number>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(const std::string& value) {
    number(static_cast<std::uint64_t>(value.size()));
    bytes_ += value;
  }
  void bits(const BitVector& value) { numbers(value.words()); }
  template <typename Number>
  void numbers(const std::vector<Number>& values) {
    list(values, [this](Number value) { number(value); });
  }
  template <typename Item, typename Write>
  void list(const std::vector<Item>& items, Write write) {
    number(static_cast<std::uint64_t>(items.size()));
    for (const Item& item : items) write(item);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  bool flag() { return number<std::uint8_t>() != 0; }
  /// An enumerator, at most `last`.
  template <typename Choice>
  Choice choice(Choice last) {
    const auto value = number<Choice>();
    if (value > last) fail();
    return value;
  }
  std::string text() { return std::string(take(number<std::uint64_t>())); }
  BitVector bits() { return BitVector(numbers<std::uint64_t>()); }
  template <typename Number>
  std::vector<Number> numbers() {
    return list<Number>([this] { return number<Number>(); });
  }
  template <typename Item, typename Read>
  std::vector<Item> list(Read read) {
    const auto count = number<std::uint64_t>();
    if (count > bytes_.size()) fail();  // every item takes a byte at least
    std::vector<Item> items;
    // Some items take many times the memory of their bytes: a message may not promise more than it
    // has of those.
    items.reserve(std::min<std::uint64_t>(count, bytes_.size() / sizeof(Item)));
    for (std::uint64_t i = 0; i < count; ++i) items.push_back(read());
    return items;
  }
  void expect_end() const {
    if (!bytes_.empty()) fail();
  }
  /// Of what is a member itself, and has none: nests as deep as the sender likes would overflow the
  /// stack.
  void expect_no_members() {
    if (number<std::uint64_t>() != 0) fail();
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
};

void write(Writer& out, const RequestMeta& meta) {
  out.number(meta.kind);
  out.number(meta.dtype);
  out.number(meta.wire_dtype.value_or(meta.dtype));
  out.number(meta.op);
  out.number(meta.device);
  out.number(meta.set);
  out.number(meta.root);
  out.number(meta.prescale);
  out.number(meta.postscale);
  out.numbers(meta.shape);
  out.numbers(meta.splits);
  out.number(meta.symmetric_place);
  out.list(meta.members, [&](const RequestMeta& member) {
    out.text(member.name);
    write(out, member);
  });
  if (!is_point_to_point(meta.kind)) return;
  out.number(meta.peer);
  out.number(meta.tag);
}

RequestMeta read_meta(Reader& in, bool is_member = false) {
  RequestMeta meta;
  meta.kind = in.choice(kLastCollective);
  meta.dtype = in.choice(DataType::Bool);
  if (const auto wire = in.choice(DataType::Bool); wire != meta.dtype) meta.wire_dtype = wire;
  meta.op = in.choice(ReduceOp::Adasum);
  meta.device = in.choice(DeviceKind::Cuda);
  meta.set = in.number<std::uint32_t>();
  meta.root = in.number<std::int32_t>();
  meta.prescale = in.number<double>();
  meta.postscale = in.number<double>();
  meta.shape = in.numbers<std::int64_t>();
  meta.splits = in.numbers<std::int64_t>();
  meta.symmetric_place = in.number<std::uint64_t>();
  if (is_member) {
    in.expect_no_members();
  } else {
    meta.members = in.list<RequestMeta>([&] {
      std::string name = in.text();
      RequestMeta member = read_meta(in, /*is_member=*/true);
      member.name = std::move(name);
      return member;
    });
  }
  if (is_point_to_point(meta.kind)) {
    meta.peer = in.number<std::int32_t>();
    meta.tag = in.number<std::int64_t>();
  }
  return meta;
}

void write(Writer& out, const KeyedSlot& item) {
  out.text(item.key);
  out.number(item.slot);
  out.number(item.contributes);
}

KeyedSlot read_keyed(Reader& in) {
  KeyedSlot item;
  item.key = in.text();
  item.slot = in.number<std::uint32_t>();
  item.contributes = in.flag();
  return item;
}

void write(Writer& out, const ReadyMessage& message) {
  out.number(message.set);
  out.number(message.decisions_seen);
  out.bits(message.cached);
  out.bits(message.absent);
  out.list(message.keyed, [&](const KeyedSlot& item) { write(out, item); });
  out.list(message.requests, [&](const FullRequest& request) {
    out.text(request.key);
    write(out, request.meta);
    out.number(request.contributes);
  });
  out.list(message.expired, [&](const std::string& key) { out.text(key); });
  out.number(message.shutdown);
  out.number(message.unnamed_before);
  out.number(message.joined);
  out.number(message.after_wait);
}

ReadyMessage read_ready(Reader& in) {
  ReadyMessage message;
  message.set = in.number<std::uint32_t>();
  message.decisions_seen = in.number<std::uint64_t>();
  message.cached = in.bits();
  message.absent = in.bits();
  message.keyed = in.list<KeyedSlot>([&] { return read_keyed(in); });
  message.requests = in.list<FullRequest>([&] {
    FullRequest request;
    request.key = in.text();
    request.meta = read_meta(in);
    request.contributes = in.flag();
    return request;
  });
  message.expired = in.list<std::string>([&] { return in.text(); });
  message.shutdown = in.flag();
  message.unnamed_before = in.number<std::uint64_t>();
  message.joined = in.flag();
  message.after_wait = in.flag();
  return message;
}

void write(Writer& out, const RankRows& rows) {
  out.numbers(rows.first_dims);
  out.list(rows.splits, [&](const auto& splits) { out.numbers(splits); });
  out.list(rows.members, [&](const RankRows& member) { write(out, member); });
}

RankRows read_rows(Reader& in, bool is_member = false) {
  RankRows rows;
  rows.first_dims = in.numbers<std::int64_t>();
  rows.splits = in.list<std::vector<std::int64_t>>([&] { return in.numbers<std::int64_t>(); });
  if (is_member) {
    in.expect_no_members();
  } else {
    rows.members = in.list<RankRows>([&] { return read_rows(in, /*is_member=*/true); });
  }
  return rows;
}

void write(Writer& out, const Response& response) {
  out.text(response.key);
  out.text(response.error);
  out.number(response.only_rank);
  write(out, response.meta);
  write(out, response.rows);
  out.number(response.contributed);
  out.number(response.slot);
  out.numbers(response.joined);
  out.number(response.average_over);
}

Response read_response(Reader& in) {
  Response response;
  response.key = in.text();
  response.error = in.text();
  response.only_rank = in.number<std::int32_t>();
  response.meta = read_meta(in);
  response.rows = read_rows(in);
  response.contributed = in.flag();
  response.slot = in.number<std::int32_t>();
  response.joined = in.numbers<std::int32_t>();
  response.average_over = in.number<std::int32_t>();
  return response;
}

void write(Writer& out, const ScheduleMessage& message) {
  out.list(message.buckets, [&](const std::vector<ScheduledSlot>& bucket) {
    out.list(bucket, [&](const ScheduledSlot& item) {
      out.number(item.slot);
      out.number(item.contributed);
    });
  });
  out.number(message.patience_ms);
}

ScheduleMessage read_schedule(Reader& in) {
  ScheduleMessage message;
  message.buckets = in.list<std::vector<ScheduledSlot>>([&] {
    return in.list<ScheduledSlot>([&] {
      ScheduledSlot item;
      item.slot = in.number<std::uint32_t>();
      item.contributed = in.flag();
      return item;
    });
  });
  message.patience_ms = in.number<std::uint64_t>();
  return message;
}

void write(Writer& out, const DecisionMessage& message) {
  out.number(message.set);
  out.number(message.number);
  out.bits(message.cached);
  out.bits(message.skipped);
  out.list(message.keyed, [&](const KeyedSlot& item) { write(out, item); });
  out.list(message.responses, [&](const Response& response) { write(out, response); });
  out.number(message.shutdown);
  out.number(message.next_unnamed);
  out.number(message.last_joined);
  write(out, message.schedule);
}

DecisionMessage read_decision(Reader& in) {
  DecisionMessage message;
  message.set = in.number<std::uint32_t>();
  message.number = in.number<std::uint64_t>();
  message.cached = in.bits();
  message.skipped = in.bits();
  message.keyed = in.list<KeyedSlot>([&] { return read_keyed(in); });
  message.responses = in.list<Response>([&] { return read_response(in); });
  message.shutdown = in.flag();
  message.next_unnamed = in.number<std::uint64_t>();
  message.last_joined = in.number<std::int32_t>();
  message.schedule = read_schedule(in);
  return message;
}

void write(Writer& out, const FailureMessage& message) {
  out.number(message.rank);
  out.text(message.text);
  out.number(message.certain);
  out.number(message.in_order);
}

FailureMessage read_failure(Reader& in) {
  FailureMessage message;
  message.rank = in.number<std::int32_t>();
  message.text = in.text();
  message.certain = in.flag();
  message.in_order = in.flag();
  return message;
}

void write(Writer& out, const StallMessage& message) {
  out.list(message.operations, [&](const StalledOperation& operation) {
    out.text(operation.name);
    out.text(operation.text);
    out.number(operation.kind);
    out.numbers(operation.submitted_ranks);
    out.numbers(operation.missing_ranks);
    out.number(static_cast<std::int64_t>(operation.waiting.count()));
  });
}

StallMessage read_stall(Reader& in) {
  StallMessage message;
  message.operations = in.list<StalledOperation>([&] {
    StalledOperation operation;
    operation.name = in.text();
    operation.text = in.text();
    operation.kind = in.choice(kLastCollective);
    operation.submitted_ranks = in.numbers<int>();
    operation.missing_ranks = in.numbers<int>();
    operation.waiting = std::chrono::milliseconds(in.number<std::int64_t>());
    return operation;
  });
  return message;
}

void write(Writer& out, const BootstrapMessage& message) {
  out.number(message.rank);
  out.list(message.blobs, [&](const std::string& blob) { out.text(blob); });
}

BootstrapMessage read_bootstrap(Reader& in) {
  BootstrapMessage message;
  message.rank = in.number<std::int32_t>();
  message.blobs = in.list<std::string>([&] { return in.text(); });
  return message;
}

void write(Writer& out, const FinishedMessage& message) {
  out.numbers(message.ranks);
}

void write(Writer& out, const HostReadyMessage& message) {
  out.list(message.parts, [&](const HostReadyMessage::Part& part) {
    out.numbers(part.ranks);
    write(out, part.ready);
  });
  out.number(message.set);
}

HostReadyMessage read_host_ready(Reader& in) {
  HostReadyMessage message;
  message.parts = in.list<HostReadyMessage::Part>([&] {
    HostReadyMessage::Part part;
    part.ranks = in.numbers<std::int32_t>();
    part.ready = read_ready(in);
    return part;
  });
  message.set = in.number<std::uint32_t>();
  return message;
}

void write(Writer& out, const ExchangeKey& key) {
  out.number(key.kind);
  out.number(key.set);
  out.text(key.name);
  out.numbers(key.ranks);
}

ExchangeKey read_exchange_key(Reader& in) {
  ExchangeKey key;
  key.kind = in.choice(ExchangeKind::RemoveSet);
  key.set = in.number<std::uint32_t>();
  key.name = in.text();
  key.ranks = in.numbers<std::int32_t>();
  return key;
}

void write(Writer& out, const ExchangeRequest& message) {
  write(out, message.key);
  out.number(message.rank);
  out.text(message.blob);
}

ExchangeRequest read_exchange_request(Reader& in) {
  ExchangeRequest message;
  message.key = read_exchange_key(in);
  message.rank = in.number<std::int32_t>();
  message.blob = in.text();
  return message;
}

void write(Writer& out, const ExchangeReply& message) {
  write(out, message.key);
  out.numbers(message.to);
  out.text(message.error);
  out.list(message.blobs, [&](const std::string& blob) { out.text(blob); });
  out.number(message.set);
  out.numbers(message.members);
}

ExchangeReply read_exchange_reply(Reader& in) {
  ExchangeReply message;
  message.key = read_exchange_key(in);
  message.to = in.numbers<std::int32_t>();
  message.error = in.text();
  message.blobs = in.list<std::string>([&] { return in.text(); });
  message.set = in.number<std::uint32_t>();
  message.members = in.numbers<std::int32_t>();
  return message;
}

Message read_message(Reader& in) {
  // The order of the alternatives of Message.
  switch (in.number<std::uint8_t>()) {
    case 0:
      return read_ready(in);
    case 1:
      return read_decision(in);
    case 2:
      return read_failure(in);
    case 3:
      return read_stall(in);
    case 4:
      return read_bootstrap(in);
    case 5:
      return FinishedMessage{in.numbers<std::int32_t>()};
    case 6:
      return read_host_ready(in);
    case 7:
      return read_exchange_request(in);
    case 8:
      return read_exchange_reply(in);
    default:
      throw Error("a control message has an unknown type: do all ranks run one version of Ronde?");
  }
}

}  // namespace

bool DecisionMessage::voids_announcements() const {
  const auto assigns_slot = [](const Response& response) {
    return response.error.empty() && response.slot >= 0;
  };
  return last_joined >= 0 || !schedule.buckets.empty() ||
         std::any_of(responses.begin(), responses.end(), assigns_slot);
}

std::string encode(const Message& message) {
  Writer out;
  out.number(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& alternative) { write(out, alternative); }, message);
  return out.take();
}

Message decode(std::string_view bytes) {
  Reader in(bytes);
  Message message = read_message(in);
  in.expect_end();
  return message;
}

}  // namespace ronde
