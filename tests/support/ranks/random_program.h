// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <random>

#include "ronde/collective.h"
#include "ronde/config.h"
#include "ronde/dtype.h"

namespace ronde::test {

/// The seed of a random test.
struct TestSeed {
  std::uint64_t value = 0;
  bool is_usual = true;  ///< what is drawn is the same in each run, and known to reach enough
  /// The variable that makes a test draw the same again.
  std::string text() const;
};

/// `usual`; with RONDE_TEST_SOAK=1 a random one, which is printed; in both cases RONDE_TEST_SEED
/// instead, if it is set. Throws std::runtime_error where that is no number.
TestSeed test_seed(std::uint64_t usual);

/// Random choices: the same for the same seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t number() { return engine_(); }
  /// 0 to `bound` - 1.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(engine_() % bound); }
  bool one_in(std::size_t bound) { return below(bound) == 0; }

  template <typename Choices>
  auto among(const Choices& choices) {
    return *(std::begin(choices) + static_cast<std::ptrdiff_t>(below(std::size(choices))));
  }
  template <typename Value>
  void shuffle(std::vector<Value>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

/// One operation of all ranks. Shapes are [rows, columns].
struct RandomOperation {
  std::string name;  ///< empty: matched by the order of calls
  Collective kind = Collective::Allreduce;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;                    ///< of a message (kind Send, on its receiver Recv): who sends
  int to = 0;                      ///< who receives it
  std::vector<std::int64_t> rows;  ///< by rank: equal, but for an allgather or alltoall
  std::int64_t columns = 1;
  /// Of an alltoall, by rank; all empty: equally many to each.
  std::vector<std::vector<std::int64_t>> splits;
  std::vector<bool> contributes;            ///< by rank
  bool symmetric = false;                   ///< an allreduce that wants symmetric buffers
  std::optional<DataType> wire_dtype = {};  ///< of an allreduce; it is not symmetric then
  bool wants_group = false;                 ///< with the others of its phase that do
  /// One rank has another shape, or refuses: it has to fail on all.
  bool has_to_fail = false;
  int refuses = -1;        ///< this rank does; -1: none
  std::uint64_t data = 0;  ///< what the elements are drawn from

  std::size_t count(int rank) const;
  bool takes_part(int rank) const;
  bool all_contribute() const { return std::ranges::count(contributes, false) == 0; }
  /// Of a group there are those that want to and can: they have a name, and all contribute.
  bool is_grouped() const;
  /// What is special about it: "wire dtype", "adasum" or "message", or nothing.
  std::vector<std::string> special() const;
  /// Of a message: one without a name has the same as others, and is matched by its order; another
  /// one has its own, as a sender that takes no part in a round may be ahead of it.
  std::int64_t tag() const;
  /// For messages.
  std::string text() const;
};

/// Operations that a rank may submit in any order, and before it waits for any of them; those
/// without a name in the order given.
using Phase = std::vector<RandomOperation>;

/// A step of the program. A rank waits for operations of earlier phases only, unless `in_order`:
/// all ranks then submit each phase as it stands, and may wait in the middle of it.
struct Round {
  std::string text;
  bool in_order = false;
  std::vector<Phase> phases;
  /// By rank, if all ranks join in this round: how many operations of the only phase, which is in
  /// order, they take part in before.
  std::vector<std::size_t> until;
};

/// What all ranks of a group do, as it follows from a seed: a set of tensors of all kinds comes
/// again for some rounds, so that the schedule freezes, with deviations at random; then another
/// set.
class RandomProgram {
 public:
  RandomProgram(std::uint64_t seed, int ranks);

  Round next();

 private:
  void make_plan();
  void add_rare_members();
  RandomOperation make_operation();
  Round make_join();
  void choose_shape(RandomOperation& operation);
  void choose_rows_by_rank(RandomOperation& operation, std::size_t most);
  std::string deviate(Round& round);
  void silence_some(RandomOperation& operation);
  std::string change_one(RandomOperation& operation);

  const int ranks_;
  Dice dice_;
  std::uint64_t rounds_ = 0;
  std::uint64_t names_ = 0;
  std::size_t left_ = 0;       ///< rounds of the plan
  bool has_messages_ = false;  ///< the plan does
  Round plan_;
};

/// Settings that a group of ranks may have, from none to all of fusion, cache and frozen schedule.
Config random_settings(Dice& dice, Config config);

/// With algorithms between hosts that are any of theirs, or left to the table.
Config with_random_algorithms(std::uint64_t seed, Config config);

}  // namespace ronde::test
