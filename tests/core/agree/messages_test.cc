// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/messages.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <tuple>

namespace {

using namespace ronde;

SpecPtr odd_spec(int salt) {
  OpSpec spec;
  spec.kind = Collective::Allgather;
  spec.dtype = DataType::BF16;
  if (salt % 2 == 0) spec.wire_dtype = DataType::F16;
  spec.op = ReduceOp::Product;
  spec.device = DeviceKind::Cuda;
  spec.set = 0x80000001U + static_cast<std::uint32_t>(salt);
  spec.root = -5 - salt;
  spec.prescale = 0.1 + salt;
  spec.postscale = -1e300;
  spec.shape = {std::int64_t{1} << 40, 0, salt};
  spec.has_splits = salt % 2 == 1;
  spec.splits = {salt, -7};
  if (salt == 2) spec.refusal = std::string("two\nlines and a \0", 17);
  return share(spec);
}

SpecPtr message_spec(Collective kind) {
  OpSpec spec;
  spec.kind = kind;
  spec.shape = {3};
  spec.peer = kAnyRank;
  spec.tag = std::int64_t{1} << 40;
  return share(spec);
}

ReadyMessage ready_message() {
  ReadyMessage message;
  message.decisions_seen = 0x0123456789abcdefU;
  for (const std::size_t bit : {0U, 63U, 64U, 200U}) message.cached.set(bit);
  message.absent.set(64);
  message.keyed = {{unnamed_key(7), 3, false}, {"g", 4000000000U, true}};
  message.requests = {{std::string("a\0b", 3), odd_spec(1), false},
                      {"", odd_spec(2), true},
                      {message_key(5), message_spec(Collective::Recv), true}};
  message.expired = {"late", std::string("\0"
                                         "12",
                                         3)};
  message.shutdown = true;
  return message;
}

DecisionMessage decision_message() {
  DecisionMessage message;
  message.number = 99;
  message.cached.set(1);
  message.skipped.set(130);
  message.keyed = {{unnamed_key(1), 2, false}};
  message.responses = {{"key", "error text", 3, odd_spec(4), {{5, kHasSplits, 7}}, false, 9},
                       {"other", "", -1, odd_spec(5), {}, true, -1},
                       {message_key(6), "", 2, message_spec(Collective::Send), {}, true, -1}};
  message.shutdown = true;
  message.tuning = Tuning{1234567890123, 0.25, 5};
  return message;
}

StallMessage stall_message() {
  StallMessage message;
  message.operations = {{"name", "text", Collective::Broadcast, {0, 2}, {1}, {}},
                        {"", "other", Collective::Barrier, {}, {0, 1, 2}, {}}};
  message.operations[0].waiting = std::chrono::milliseconds(31415);
  return message;
}

ResultsMessage results_message() {
  return {3, 7, {{1, "allreduce 'x'", 2, 0xfedcba9876543210}, {4, "other", 0}}};
}

std::vector<Message> samples() {
  return {ready_message(),
          decision_message(),
          FailureMessage{7, "rank 7 was lost", false},
          stall_message(),
          BootstrapMessage{3, {"", "one", std::string(300, 'x')}},
          FinishedMessage{{0, 7}},
          results_message(),
          HostReadyMessage{{{{4, 6}, ready_message()}, {{5}, {}}}}};
}

template <typename Type>
Type round_trip(const Type& message) {
  return std::get<Type>(decode(encode(message)));
}

/// The fields of what lists of messages hold.
auto fields(const KeyedSlot& item) {
  return std::tie(item.key, item.slot, item.contributes);
}
auto fields(const FullRequest& item) {
  return std::tuple(item.key, *item.spec, item.contributes);
}
auto fields(const Response& item) {
  return std::tuple(item.key, item.error, item.only_rank, *item.spec, item.rows, item.contributed,
                    item.slot);
}
auto fields(const ResultEnd& item) {
  return std::tie(item.number, item.text, item.step, item.checksum);
}
auto fields(const StalledOperation& item) {
  return std::tie(item.name, item.text, item.kind, item.submitted_ranks, item.missing_ranks,
                  item.waiting);
}

/// Checks that both lists are equal.
template <typename Item>
void check_same(const std::vector<Item>& got, const std::vector<Item>& sent) {
  REQUIRE(got.size() == sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    CAPTURE(i);
    CHECK((fields(got[i]) == fields(sent[i])));
  }
}

}  // namespace

TEST_CASE("every field of every message arrives") {
  const ReadyMessage ready = round_trip(ready_message());
  CHECK(ready.decisions_seen == ready_message().decisions_seen);
  CHECK(ready.cached.words() == ready_message().cached.words());
  CHECK(ready.absent.words() == ready_message().absent.words());
  check_same(ready.keyed, ready_message().keyed);
  check_same(ready.requests, ready_message().requests);
  CHECK(ready.expired == ready_message().expired);
  CHECK(ready.shutdown);
  CHECK_FALSE(round_trip(ReadyMessage{}).shutdown);
  const DecisionMessage decision = round_trip(decision_message());
  CHECK(decision.number == decision_message().number);
  CHECK(decision.cached.words() == decision_message().cached.words());
  CHECK(decision.skipped.words() == decision_message().skipped.words());
  check_same(decision.keyed, decision_message().keyed);
  check_same(decision.responses, decision_message().responses);
  CHECK(decision.shutdown);
  CHECK(decision.tuning == decision_message().tuning);
  CHECK_FALSE(round_trip(DecisionMessage{}).tuning);
  const auto failure = round_trip(FailureMessage{7, "rank 7 was lost", false, true});
  CHECK(failure.rank == 7);
  CHECK(failure.text == "rank 7 was lost");
  CHECK_FALSE(failure.certain);
  CHECK(failure.in_order);
  check_same(round_trip(stall_message()).operations, stall_message().operations);
  const std::vector<std::string> blobs = {"", "one", std::string(300, 'x')};
  CHECK(round_trip(BootstrapMessage{3, blobs}).blobs == blobs);
  CHECK(round_trip(BootstrapMessage{3, blobs}).rank == 3);
  const ResultsMessage results = round_trip(results_message());
  CHECK(results.set == 3);
  CHECK(results.rank == 7);
  check_same(results.ends, results_message().ends);
  CHECK(round_trip(FinishedMessage{{0, 7}}).ranks == std::vector<std::int32_t>{0, 7});
  const HostReadyMessage host =
      round_trip(HostReadyMessage{{{{4, 6}, ready_message()}, {{5}, {}}}});
  REQUIRE(host.parts.size() == 2);
  CHECK(host.parts[0].ranks == std::vector<std::int32_t>{4, 6});
  CHECK(encode(host.parts[0].ready) == encode(ready_message()));
  CHECK(host.parts[1].ranks == std::vector<std::int32_t>{5});
  CHECK(host.parts[1].ready.empty());
}

TEST_CASE("every truncation of every message, and bytes behind it, are refused") {
  for (const Message& message : samples()) {
    const std::string bytes = encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CAPTURE(message.index(), length, bytes.size());
      CHECK_THROWS_AS(decode(std::string_view(bytes).substr(0, length)), Error);
    }
    CHECK_NOTHROW(decode(bytes));
    CHECK_THROWS_AS(decode(bytes + std::string(1, '\0')), Error);
  }
}

TEST_CASE("counts and lengths beyond the message, and values of no enumeration, are refused") {
  const auto check_refused = [](std::string bytes, std::size_t at, const auto& value) {
    REQUIRE(at + sizeof value <= bytes.size());
    std::memcpy(bytes.data() + at, &value, sizeof value);
    CAPTURE(at);
    CHECK_THROWS_AS(decode(bytes), Error);
  };
  // Behind the type of a bootstrap message and a rank come a count and the length of the blob.
  const std::string bootstrap = encode(BootstrapMessage{0, {"blob"}});
  for (const std::uint64_t count : {~std::uint64_t{0}, std::uint64_t{1} << 61, std::uint64_t{9}}) {
    check_refused(bootstrap, 1 + 4, count);
  }
  check_refused(bootstrap, 1 + 4 + 8, ~std::uint64_t{0} - 3);
  // Behind the type of message, the process set, the number, two bit vectors and the unnamed come
  // the requests: a count, the key (with its length), that there is a spec, and of it kind, dtype,
  // op, device.
  ReadyMessage message;
  message.requests = {{"k", share(OpSpec()), true}};
  const std::size_t kind = 1 + 4 + 8 + 8 + 8 + 8 + 8 + 8 + 1 + 1;
  for (std::size_t field = 0; field < 4; ++field) {
    check_refused(encode(message), kind + field, '\x7f');
  }
}

TEST_CASE("an unknown type of message is refused") {
  CHECK_THROWS_WITH(decode("\x0a"), Catch::Contains("unknown type"));
  CHECK_THROWS_WITH(decode("\xff"), Catch::Contains("unknown type"));
  CHECK_THROWS_AS(decode(""), Error);
}
