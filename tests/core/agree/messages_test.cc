// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/messages.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "core/src/base/rank_list.h"

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
  message.requests = {{unnamed_key(7), nullptr, false, 0, 3},
                      {"g", nullptr, true, 0, 4000000000U},
                      {std::string("a\0b", 3), odd_spec(1), false},
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
  message.operations = {{"name", "text", Collective::Broadcast, {{0, 0}, {2, 2}}, {{1, 1}}, {}},
                        {"", "other", Collective::Barrier, {}, {{0, 2}}, {}}};
  message.operations[0].waiting = std::chrono::milliseconds(31415);
  return message;
}

ResultsMessage results_message() {
  return {3, 7, {{1, "allreduce 'x'", 2, 0xfedcba9876543210}, {4, "other", 0}}};
}

std::vector<Message> samples() {
  return {decision_message(),      FailureMessage{7, "rank 7 was lost", false, true, true},
          stall_message(),         BootstrapMessage{3, {"", "one", std::string(300, 'x')}},
          FinishedMessage{{0, 7}}, StallLimitMessage{std::int64_t{1} << 50},
          results_message(),       HostReadyMessage{{{{4, 6}, ready_message()}, {{5}, {}}}}};
}

}  // namespace

TEST_CASE("every truncation of every message, and bytes behind it, are refused") {
  for (const Message& message : samples()) {
    const std::string bytes = encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CAPTURE(message.index(), length, bytes.size());
      CHECK_THROWS_AS(decode(std::string_view(bytes).substr(0, length)), Error);
    }
    CHECK(encode(decode(bytes)) == bytes);
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
  // Behind the type of message, the counts of parts and of ranks, the number and two bit vectors
  // come the requests: a count, the key (with its length), that there is a spec, and of it kind,
  // dtype, op, device.
  HostReadyMessage message;
  message.parts.emplace_back().ready.requests = {{"k", share(OpSpec()), true}};
  const std::size_t kind = 1 + 8 + 8 + 8 + 8 + 8 + 8 + 8 + 1 + 1;
  for (std::size_t field = 0; field < 4; ++field) {
    check_refused(encode(message), kind + field, '\x7f');
  }
}

TEST_CASE("a stall of almost all of 10,000 ranks is a short message") {
  std::vector<int> submitted;
  for (int rank = 0; rank < 10'000; ++rank) {
    if (rank != 4096) submitted.push_back(rank);
  }
  const RankRanges ranges = ranges_of(submitted);
  CHECK(ranges == RankRanges{{0, 4095}, {4097, 9999}});
  CHECK(ranks_in(ranges) == submitted);
  CHECK(format_ranges(ranges) == "ranks 0-4095,4097-9999");
  StallMessage message;
  message.operations.assign(10, {"name", "text", Collective::Allreduce, ranges, {{4096, 4096}}});
  const std::string bytes = encode(message);
  CHECK(bytes.size() < 1000);
  CHECK(encode(decode(bytes)) == bytes);
}

TEST_CASE("ranges that are not those of ascending ranks are refused") {
  const RankRanges wrong =
      GENERATE(RankRanges{{-1, 0}}, RankRanges{{1, 0}}, RankRanges{{0, 2}, {2, 4}},
               RankRanges{{0, 2}, {3, 4}}, RankRanges{{5, 5}, {1, 1}},
               RankRanges{{0, std::numeric_limits<int>::max()}, {0, 1}});
  CHECK_THROWS_AS(decode(encode(StallMessage{{{"", "", {}, wrong, {}}}})), Error);
  CHECK_THROWS_AS(decode(encode(StallMessage{{{"", "", {}, {}, wrong}}})), Error);
}

TEST_CASE("an unknown type of message is refused") {
  CHECK_THROWS_WITH(decode("\x0a"), Catch::Contains("unknown type"));
  CHECK_THROWS_WITH(decode("\xff"), Catch::Contains("unknown type"));
  CHECK_THROWS_AS(decode(""), Error);
}
