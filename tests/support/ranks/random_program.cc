// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ranks/random_program.h"

#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "ronde/algorithms.h"
#include "tests/support/oracle/oracle.h"

namespace ronde::test {
namespace {

/// Under sanitizers the oracle takes most of a program's time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kMostBytes = std::size_t{1} << 17;
#else
constexpr std::size_t kMostBytes = std::size_t{1} << 20;
#endif
constexpr std::size_t kMostOperations = 12;
constexpr std::size_t kMostRepeats = 30;

constexpr std::array<std::int64_t, 6> kColumns = {1, 1, 1, 3, 8, 61};
constexpr std::array<double, 3> kScales = {0.5, 2.0, 0.75};

constexpr std::array<DataType, 2> kHalves = {DataType::F16, DataType::BF16};

constexpr std::array<Collective, 11> kKinds = {
    Collective::Allreduce,     Collective::Allreduce, Collective::Allreduce,
    Collective::Allreduce,     Collective::Allreduce, Collective::Broadcast,
    Collective::Allgather,     Collective::Alltoall,  Collective::Reducescatter,
    Collective::Reducescatter, Collective::Reduce,
};

bool can_be_sent_as_half(const RandomOperation& operation) {
  const bool is_full = operation.dtype == DataType::F32 || operation.dtype == DataType::F64;
  const bool reduces =
      operation.kind == Collective::Allreduce || operation.kind == Collective::Reduce;
  return reduces && is_full && !operation.symmetric;
}

bool can_be_adasum(const RandomOperation& operation) {
  return operation.kind == Collective::Allreduce && is_floating(operation.dtype) &&
         !operation.symmetric;
}

/// Mostly few: it is the number of operations that finds mistakes.
std::size_t random_count(Dice& dice, DataType dtype) {
  if (dice.one_in(10)) return 0;
  if (dice.one_in(100)) return 1 + dice.below((kMostBytes >> dice.below(7)) / size_of(dtype));
  if (dice.one_in(6)) return 1 + dice.below(5000);
  return 1 + dice.below(100);
}

}  // namespace

TestSeed test_seed(std::uint64_t usual) {
  const char* const soak = std::getenv("RONDE_TEST_SOAK");
  const char* const text = std::getenv("RONDE_TEST_SEED");
  const bool is_soak = soak != nullptr && std::string(soak) == "1";
  TestSeed seed = {usual, text == nullptr && !is_soak};
  if (text != nullptr) {
    std::size_t read = 0;
    const std::string word = text;
    seed.value = std::stoull(word, &read);
    if (read != word.size()) throw std::runtime_error("RONDE_TEST_SEED is not a number: " + word);
  } else if (is_soak) {
    seed.value = std::random_device()();
  }
  if (is_soak) std::cout << seed.text() << std::endl;
  return seed;
}

std::string TestSeed::text() const {
  return "RONDE_TEST_SEED=" + std::to_string(value);
}

std::size_t RandomOperation::count(int rank) const {
  return static_cast<std::size_t>(rows[static_cast<std::size_t>(rank)] * columns);
}

bool RandomOperation::takes_part(int rank) const {
  return kind != Collective::Send || rank == root || rank == to;
}

std::vector<std::string> RandomOperation::special() const {
  std::vector<std::string> all;
  if (wire_dtype) all.emplace_back("wire dtype");
  if (op == ReduceOp::Adasum) all.emplace_back("adasum");
  if (kind == Collective::Send) all.emplace_back("message");
  return all;
}

bool RandomOperation::is_grouped() const {
  const bool moves = kind != Collective::Barrier && kind != Collective::Send;
  return wants_group && moves && !name.empty() && all_contribute();
}

std::int64_t RandomOperation::tag() const {
  return name.empty() ? 0 : static_cast<std::int64_t>(data >> 1);
}

std::string RandomOperation::text() const {
  std::string text(to_string(kind));
  text += symmetric ? " of symmetric buffers" : "";
  text += is_grouped() ? " in a group" : "";
  text += name.empty() ? " without a name" : " '" + name + "'";
  if (kind == Collective::Barrier) return text;
  text += " " + std::string(to_string(dtype));
  if (wire_dtype) text += " as " + std::string(to_string(*wire_dtype));
  text += " rows";
  for (const std::int64_t each : rows) text += " " + std::to_string(each);
  text += " columns " + std::to_string(columns);
  if (is_reduction(kind)) {
    text += " " + std::string(to_string(op)) + " scales " + std::to_string(prescale) + " " +
            std::to_string(postscale) + " contributes";
    for (const bool each : contributes) text += each ? " 1" : " 0";
  }
  if (kind == Collective::Broadcast || kind == Collective::Reduce)
    text += " root " + std::to_string(root);
  if (kind != Collective::Send) return text;
  text += " from " + std::to_string(root) + " to " + std::to_string(to);
  return text;
}

RandomProgram::RandomProgram(std::uint64_t seed, int ranks) : ranks_(ranks), dice_(seed) {}

Round RandomProgram::next() {
  if (dice_.one_in(15)) return make_join();
  if (left_ == 0) make_plan();
  --left_;
  Round round = plan_;
  round.text = "round " + std::to_string(rounds_++);
  if (dice_.one_in(9)) round.text += deviate(round);
  for (Phase& phase : round.phases) {
    for (RandomOperation& operation : phase) operation.data = dice_.number();
  }
  return round;
}

/// Reductions of which each rank takes part in the first so many.
Round RandomProgram::make_join() {
  Round round;
  round.text = "round " + std::to_string(rounds_++) + ", a join";
  round.in_order = true;
  Phase& phase = round.phases.emplace_back();
  const std::size_t operations = dice_.below(8);
  while (phase.size() < operations) {
    RandomOperation operation = make_operation();
    if (!is_reduction(operation.kind)) continue;
    operation.contributes.assign(static_cast<std::size_t>(ranks_), true);
    operation.symmetric = false;
    if (!dice_.one_in(3)) operation.name = "t" + std::to_string(phase.size());
    operation.data = dice_.number();
    phase.push_back(std::move(operation));
  }
  for (int rank = 0; rank < ranks_; ++rank) round.until.push_back(dice_.below(operations + 1));
  return round;
}

void RandomProgram::make_plan() {
  left_ = 1 + dice_.below(kMostRepeats);
  plan_ = {};
  plan_.in_order = dice_.one_in(4);
  // Messages keep ranks from freezing.
  has_messages_ = dice_.one_in(4);
  plan_.phases.resize(dice_.one_in(4) ? 2 : 1);
  const bool groups = dice_.one_in(4);  // these too
  const std::size_t operations = 1 + dice_.below(kMostOperations);
  for (std::size_t i = 0; i < operations; ++i) {
    RandomOperation operation = make_operation();
    // Names come again with other shapes, and new ones come.
    if (!dice_.one_in(6)) {
      operation.name = "t" + std::to_string(dice_.one_in(2) ? i : kMostOperations + names_++);
    }
    operation.wants_group = groups && dice_.one_in(2);
    plan_.phases[dice_.below(plan_.phases.size())].push_back(std::move(operation));
  }
  if (groups) add_rare_members();
}

/// What is rare among all operations would be in a group by chance only.
void RandomProgram::add_rare_members() {
  for (const bool is_adasum : {false, true}) {
    RandomOperation operation;
    do {
      operation = make_operation();
      operation.name = is_adasum ? "adasum" : "half";
      operation.wants_group = true;
    } while (!operation.is_grouped() || (operation.op == ReduceOp::Adasum) != is_adasum ||
             operation.wire_dtype.has_value() == is_adasum);
    plan_.phases[0].push_back(std::move(operation));
  }
}

RandomOperation RandomProgram::make_operation() {
  RandomOperation operation;
  operation.kind = dice_.among(kKinds);
  operation.dtype = dice_.among(kAllDataTypes);
  operation.contributes.assign(static_cast<std::size_t>(ranks_), true);
  operation.root = static_cast<int>(dice_.below(static_cast<std::size_t>(ranks_)));
  if (ranks_ > 1 && dice_.one_in(has_messages_ ? 3 : 50)) {
    operation.kind = Collective::Send;
    const std::size_t others = static_cast<std::size_t>(ranks_) - 1;
    operation.to = (operation.root + 1 + static_cast<int>(dice_.below(others))) % ranks_;
  }
  const bool is_bool = operation.dtype == DataType::Bool;
  operation.op = dice_.among(ops_of(operation.dtype));
  if (!is_bool && dice_.one_in(3) && can_have_factors(operation.dtype, operation.op)) {
    operation.prescale = is_integer(operation.dtype) ? 0.5 : dice_.among(kScales);
    operation.postscale = is_integer(operation.dtype) ? 0.5 : dice_.among(kScales);
  }
  if (is_reduction(operation.kind) && dice_.one_in(10)) silence_some(operation);
  operation.symmetric = operation.kind == Collective::Allreduce && dice_.one_in(2);
  if (can_be_adasum(operation) && dice_.one_in(4)) operation.op = ReduceOp::Adasum;
  if (can_be_sent_as_half(operation) && dice_.one_in(2))
    operation.wire_dtype = dice_.among(kHalves);
  choose_shape(operation);
  return operation;
}

void RandomProgram::silence_some(RandomOperation& operation) {
  for (std::size_t rank = 0; rank < operation.contributes.size(); ++rank) {
    operation.contributes[rank] = dice_.one_in(2);
  }
}

void RandomProgram::choose_shape(RandomOperation& operation) {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const std::size_t count = random_count(dice_, operation.dtype);
  operation.columns = dice_.among(kColumns);
  const auto columns = static_cast<std::size_t>(operation.columns);
  const std::size_t rows = (count + columns - 1) / columns;
  operation.rows.assign(ranks, static_cast<std::int64_t>(rows));
  operation.splits.assign(operation.kind == Collective::Alltoall ? ranks : 0, {});
  if (operation.kind == Collective::Allgather || operation.kind == Collective::Alltoall) {
    choose_rows_by_rank(operation, rows);
  }
}

void RandomProgram::choose_rows_by_rank(RandomOperation& operation, std::size_t most) {
  const bool is_alltoall = operation.kind == Collective::Alltoall;
  const bool is_even = is_alltoall && dice_.one_in(3);
  for (std::size_t rank = 0; rank < operation.rows.size(); ++rank) {
    std::int64_t& rows = operation.rows[rank];
    rows = 0;
    if (is_even) rows = static_cast<std::int64_t>(most / operation.rows.size()) * ranks_;
    if (!is_alltoall) rows = static_cast<std::int64_t>(dice_.below(most + 1));
    if (!is_alltoall || is_even) continue;
    for (int to = 0; to < ranks_; ++to) {
      const auto part = static_cast<std::int64_t>(dice_.below(most / operation.rows.size() + 2));
      operation.splits[rank].push_back(part);
      rows += part;
    }
  }
}

/// The text says what is different this time.
std::string RandomProgram::deviate(Round& round) {
  Phase& phase = round.phases[dice_.below(round.phases.size())];
  const std::size_t place = dice_.below(phase.size() + 1);
  const auto at = phase.begin() + static_cast<std::ptrdiff_t>(place);
  switch (dice_.below(6)) {
    case 0: {
      RandomOperation extra = make_operation();
      if (!dice_.one_in(3)) extra.name = "extra";
      phase.insert(at, std::move(extra));
      return ", one more";
    }
    case 1:
      if (at == phase.end()) break;
      phase.erase(at);
      return ", one fewer";
    case 2: {
      const Phase later(at, phase.end());
      phase.erase(at, phase.end());
      round.phases.push_back(later);
      return ", a wait in the middle";
    }
    case 3: {
      RandomOperation barrier;
      barrier.kind = Collective::Barrier;
      if (dice_.one_in(2)) barrier.name = "barrier";
      round.phases.push_back({std::move(barrier)});
      return ", a barrier at the end";
    }
    default:
      if (at != phase.end()) return change_one(*at);
  }
  return "";
}

std::string RandomProgram::change_one(RandomOperation& operation) {
  switch (dice_.below(5)) {
    case 0:
      choose_shape(operation);
      return ", another shape of " + operation.name;
    case 1:
      if (!is_reduction(operation.kind)) break;
      silence_some(operation);
      return ", others contribute to " + operation.name;
    case 2:
      operation.name.clear();
      return ", one without its name";
    case 3:
      if (!can_be_sent_as_half(operation)) break;
      operation.wire_dtype = dice_.among(kHalves);
      return ", perhaps another wire_dtype of " + operation.name;
    default:
      if (operation.kind != Collective::Allreduce || ranks_ == 1) break;
      const std::size_t odd = dice_.below(operation.rows.size());
      operation.has_to_fail = true;
      if (operation.rows[odd] % 2 == 0) {
        operation.refuses = static_cast<int>(odd);
        return ", a refusal of " + operation.name;
      }
      ++operation.rows[odd];
      return ", a mismatch in " + operation.name;
  }
  return "";
}

Config random_settings(Dice& dice, Config config) {
  config.fusion_bytes = dice.among(std::array<std::uint64_t, 4>{0, 4 << 10, 256 << 10, 64 << 20});
  config.cache_capacity = dice.among(std::array<std::uint64_t, 4>{1024, 1024, 7, 0});
  config.freeze_after_steps = dice.among(std::array<std::uint64_t, 4>{1, 2, 3, 0});
  config.join_average = dice.one_in(2) ? "all" : "contributing";
  // It would keep others from freezing.
  config.verify = config.freeze_after_steps == 0 && config.join_average == "all";
  // A missed wake-up is to hang until the watchdog tells, not until these limits help it out.
  config.stall_warn_s = config.stall_abort_s = 0.0;
  config.cycle_time_ms = dice.among(std::array<double, 3>{0.0, 0.1, 1.0});
  return config;
}

Config with_random_algorithms(std::uint64_t seed, Config config) {
  Dice dice(seed);
  const std::pair<Collective, std::string&> variables[] = {
      {Collective::Allreduce, config.allreduce},
      {Collective::Broadcast, config.broadcast},
      {Collective::Allgather, config.allgather},
      {Collective::Reducescatter, config.reducescatter},
      {Collective::Alltoall, config.alltoall}};
  for (const auto& [collective, name] : variables) {
    const auto all = algorithms_of(collective);
    if (!dice.one_in(4)) name = to_string(all[dice.below(all.size())]);
  }
  return config;
}

}  // namespace ronde::test
