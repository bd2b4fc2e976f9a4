// SPDX-License-Identifier: Apache-2.0
// Control messages of other ranks.
#include "core/src/agree/messages.h"

#include "ronde/error.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

OpSpec reduction() {
  OpSpec spec;
  spec.wire_dtype = DataType::BF16;
  spec.op = ReduceOp::Average;
  spec.prescale = 0.5;
  spec.shape = {64, 3, 7, 7};
  return spec;
}

OpSpec alltoall() {
  OpSpec spec;
  spec.kind = Collective::Alltoall;
  spec.shape = {5, 2};
  spec.has_splits = true;
  spec.splits = {2, 3};
  return spec;
}

OpSpec send() {
  OpSpec spec;
  spec.kind = Collective::Send;
  spec.shape = {3};
  spec.peer = 1;
  spec.tag = 9;
  return spec;
}

OpSpec group() {
  OpSpec spec;
  spec.kind = Collective::Barrier;
  spec.members = {reduction(), alltoall()};
  spec.members[0].name = "first";
  spec.members[1].refusal = "no memory";
  return spec;
}

BitVector slots() {
  BitVector bits;
  for (const std::size_t slot : {0U, 63U, 64U, 200U}) bits.set(slot);
  return bits;
}

ReadyMessage ready() {
  ReadyMessage message;
  message.decisions_seen = 7;
  message.cached = message.absent = slots();
  message.requests = {{unnamed_key(7), nullptr, false, 0, 3},
                      {"g", nullptr, true, 0, 4},
                      {"weights", share(reduction()), false},
                      {message_key(5), share(send()), true},
                      {"g", share(group()), true}};
  message.expired = {"late"};
  message.joined = true;
  return message;
}

DecisionMessage decision() {
  RankRows rows{{5, kHasSplits, 7}};
  RankRows group_rows;
  group_rows.members = {{}, rows};
  DecisionMessage message;
  message.number = 99;
  message.cached = message.skipped = slots();
  message.keyed = {{unnamed_key(1), 2, false}};
  message.responses = {{"k", "an error", 3, share(alltoall()), rows, false, 9, {1, 2}, 3},
                       {"g", "", -1, share(group()), group_rows, true, -1}};
  message.schedule = {{{{1, true}, {2, false}}, {{3, true}}}, 100};
  return message;
}

StallMessage stall() {
  return {{{"x",
            "allreduce 'x'",
            Collective::Allreduce,
            {{0, 0}, {2, 2}},
            {{1, 1}},
            std::chrono::seconds(60)},
           {"", "barrier", Collective::Barrier, {}, {{0, 1}}, {}}}};
}

/// Rows whose members have members, and so on: overflowed the stack.
std::string deep_nest() {
  DecisionMessage message;
  message.responses.resize(1);
  message.responses[0].rows.members.resize(1);
  std::string bytes = encode(message);
  // No first dimensions, one member.
  std::string level(16, '\0');
  level[8] = 1;
  std::string levels;
  for (int i = 0; i < 1300; ++i) levels += level;
  return bytes.insert(bytes.rfind(level), levels);
}

/// As many responses as bytes that follow: took some hundred times the memory of the message.
std::string promise_of_many() {
  constexpr std::size_t kCount = 1 + 4 + 8 + 8 + 8 + 8;  // the place of the number of responses
  std::string bytes = encode(DecisionMessage{});
  bytes.resize(std::size_t{32} << 10);
  bytes[kCount + 1] = 0x40;
  return bytes;
}

}  // namespace

std::vector<std::string> valid_inputs() {
  take(deep_nest());
  take(promise_of_many());
  const ExchangeKey key = {ExchangeKind::CreateSet, 2, "set", {0, 3}};
  std::vector<std::string> inputs;
  for (const Message& message : std::vector<Message>{
           decision(), FailureMessage{7, "rank 7 was lost", false}, stall(),
           BootstrapMessage{3, {"", "one", std::string(40, 'x')}}, FinishedMessage{{0, 7}},
           HostReadyMessage{{{{4, 6}, ready()}, {{5}, {}}}, 1}, ExchangeRequest{key, 3, "blob"},
           ExchangeReply{key, {0, 3}, "error", {"a", "b"}, 2, {0, 3}},
           ResultsMessage{2, 3, {{1, "allreduce 'x'", 4, 5}, {6, "other", 0}}},
           StallLimitMessage{60'000'000'000}}) {
    inputs.push_back(encode(message));
  }
  return inputs;
}

bool take(std::string_view bytes) {
  try {
    // Texts are compared, as a scale that is not a number is not equal to itself.
    const std::string once = encode(decode(bytes));
    require(once == encode(decode(once)), "what is decoded encodes to what decodes equal");
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace ronde::fuzz
