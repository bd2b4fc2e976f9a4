// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ranks/random_rank.h"

#include <numeric>

#include "ronde/error.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

/// What is in the memory of a result before it comes.
constexpr std::byte kUntouched{0x5a};
/// Long enough never to pass: operations with a limit take other ways.
constexpr std::chrono::minutes kLongTimeout{10};

/// Few turns: on a busy machine each costs a time slice of somebody else's.
void pause(Dice& dice) {
  const std::size_t turns = dice.one_in(50) ? dice.below(20) : dice.below(8) / 6;
  for (std::size_t i = 0; i < turns; ++i) std::this_thread::yield();
}

bool is_by_rank(Collective kind) {
  return kind == Collective::Alltoall || kind == Collective::Reducescatter;
}

Elements input_of(const RandomOperation& operation, int rank) {
  const std::size_t count = operation.count(rank);
  return is_reduction(operation.kind)
             ? make_input(operation.dtype, operation.op, count, rank, operation.data)
             : make_bytes(operation.dtype, count, rank, operation.data);
}

bool anybody_contributes(const RandomOperation& operation) {
  return std::ranges::count(operation.contributes, true) > 0;
}

/// Only sums have a neutral element that a symmetric buffer can hold for a rank that adds nothing.
bool may_be_symmetric(const RandomOperation& operation) {
  const bool is_sum = operation.op == ReduceOp::Sum || operation.op == ReduceOp::Average;
  return operation.symmetric && (is_sum || operation.all_contribute());
}

/// FNV-1a (Fowler, Noll, Vo).
std::int64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
  }
  return static_cast<std::int64_t>(hash);
}

bool all_untouched(std::span<const std::byte> bytes) {
  return std::ranges::count(bytes, kUntouched) == std::ssize(bytes);
}

}  // namespace

Work PersistentRequests::submit(Runtime& runtime, Request request) {
  Start start = take_start(request);
  return operation_for(runtime, std::move(request)).start(std::move(start));
}

PersistentOp PersistentRequests::operation_for(Runtime& runtime, Request request) {
  std::ostringstream fixed;
  fixed << request.name << '|' << to_string(request.kind) << to_string(request.dtype)
        << to_string(request.op) << to_string(request.wire_dtype.value_or(request.dtype))
        << std::hexfloat << request.prescale << '|' << request.postscale << '|' << request.root
        << '|' << request.peer << '|' << request.tag << '|' << request.set.id << '|'
        << request.timeout.count() << request.symmetric << request.lazy;
  for (const std::int64_t dimension : request.shape) fixed << ',' << dimension;
  for (const std::int64_t split : request.splits) fixed << '/' << split;
  const std::lock_guard lock(mutex_);
  PersistentOp& known = operations_[fixed.str()];
  if (!known) known = runtime.prepare(std::move(request));
  return known;
}

RandomRank::RandomRank(Engine engine, int rank, int ranks, std::uint64_t seed)
    : engine_(std::move(engine)),
      rank_(rank),
      ranks_(ranks),
      dice_(seed * 64 + static_cast<std::uint64_t>(rank) + 1) {}

void RandomRank::play(const Round& round) {
  round_ = "rank " + std::to_string(rank_) + ", " + round.text;
  if (!round.until.empty()) return play_join(round);
  reserve_symmetric(round);
  for (const Phase& phase : round.phases) {
    play_phase(phase, round.in_order);
    if (dice_.one_in(2)) wait_for_all();
  }
  wait_for_all();
  for (const InFlight& item : flight_) {
    if (!item.has_to_fail) keep_checksum(item);
  }
  flight_.clear();
  for (const auto& [operation, offset] : offsets_) heap_->release(offset);
  offsets_.clear();
}

void RandomRank::play_join(const Round& round) {
  const Phase& phase = round.phases.front();
  // A rank that takes no part in messages would join while others still exchange theirs.
  engine_.runtime().submit(request_of(Collective::Barrier)).wait();
  for (std::size_t i = 0; i < round.until[static_cast<std::size_t>(rank_)]; ++i) {
    flight_.push_back(prepare(phase[i]));
    for (const std::size_t until : round.until) flight_.back().participants.push_back(i < until);
    pause(dice_);
    submit_one(flight_.back(), dice_, false);
    if (dice_.one_in(5)) wait_for(flight_.back());
  }
  const Work join = engine_.runtime().submit(request_of(Collective::Join));
  wait_for_all();
  join.wait();
  if (join.last_rank() < 0 || join.last_rank() >= ranks_)
    throw std::runtime_error(round_ + ": no rank joined last");
  checksums_.push_back(join.last_rank());
  checksum_texts_.push_back(round_ + ": the last rank to join");
  flight_.clear();
}

/// In the order of the program, so at the same offsets on every rank.
void RandomRank::reserve_symmetric(const Round& round) {
  if (!engine_.set) heap_ = engine_.runtime().symmetric_heap();
  if (!heap_) return;
  for (const Phase& phase : round.phases) {
    for (const RandomOperation& operation : phase) {
      if (!may_be_symmetric(operation)) continue;
      // In a mismatch a rank has more rows than the others.
      const std::int64_t rows = *std::ranges::max_element(operation.rows);
      const std::size_t bytes =
          static_cast<std::size_t>(rows * operation.columns) * size_of(operation.dtype);
      const auto offset = heap_->find(bytes);
      if (!offset || !heap_->reserve(*offset, bytes)) {
        throw std::runtime_error(round_ + ": the symmetric heap is full");
      }
      offsets_[&operation] = *offset;
    }
  }
}

void RandomRank::play_phase(const Phase& phase, bool in_order) {
  const std::size_t first = flight_.size();
  for (const RandomOperation& operation : phase) {
    if (operation.takes_part(rank_)) flight_.push_back(prepare(operation));
  }
  const std::vector<InFlight*> order = own_order(first, in_order);
  const bool has_group = std::ranges::any_of(
      order, [](const InFlight* item) { return item->operation->is_grouped(); });
  if (!in_order && !has_group && order.size() > 1 && dice_.one_in(4)) {
    return submit_from_two_threads(order);
  }
  submit_group_of(order);
  for (InFlight* item : order) {
    if (item->operation->is_grouped()) continue;
    pause(dice_);
    const bool is_last = item == order.back();
    submit_one(*item, dice_, (in_order || is_last) && dice_.one_in(10));
    if (in_order && dice_.one_in(20)) wait_for(*item);
    // All ranks will submit what comes before this phase.
    if (dice_.one_in(20) && first > 0) wait_for(flight_[dice_.below(first)]);
  }
}

/// Those without a name keep their order.
std::vector<RandomRank::InFlight*> RandomRank::own_order(std::size_t first, bool in_order) {
  std::vector<InFlight*> order;
  std::vector<InFlight*> unnamed;
  for (std::size_t i = first; i < flight_.size(); ++i) {
    order.push_back(&flight_[i]);
    if (flight_[i].operation->name.empty()) unnamed.push_back(&flight_[i]);
  }
  if (in_order || dice_.one_in(3)) return order;
  dice_.shuffle(order);
  auto next = unnamed.begin();
  for (InFlight*& item : order) {
    if (item->operation->name.empty()) item = *next++;
  }
  return order;
}

void RandomRank::submit_from_two_threads(const std::vector<InFlight*>& order) {
  std::vector<InFlight*> others;
  std::vector<InFlight*> own;
  for (InFlight* item : order) {
    (!item->operation->name.empty() && dice_.one_in(2) ? others : own).push_back(item);
  }
  ThreadErrors errors;
  Dice others_dice(dice_.number());
  const auto submit = [&](const std::vector<InFlight*>& items, Dice& dice) {
    errors.catch_from([&] {
      for (InFlight* item : items) submit_one(*item, dice, false);
    });
  };
  std::thread thread([&] { submit(others, others_dice); });
  submit(own, dice_);
  thread.join();
  errors.rethrow();
}

void RandomRank::submit_one(InFlight& item, Dice& dice, bool caller_waits) {
  Request request = request_of(item, dice);
  request.caller_waits = caller_waits;
  Runtime& runtime = engine_.runtime();
  item.work = dice.one_in(2) ? persistent_->submit(runtime, std::move(request))
                             : runtime.submit(std::move(request));
  if (caller_waits) wait_for(item);
}

/// The members in an order of this rank's own.
void RandomRank::submit_group_of(const std::vector<InFlight*>& order) {
  std::vector<InFlight*> members;
  std::ranges::copy_if(order, std::back_inserter(members),
                       [](const InFlight* item) { return item->operation->is_grouped(); });
  if (members.empty()) return;
  dice_.shuffle(members);
  const bool has_to_fail = std::ranges::any_of(
      members, [](const InFlight* item) { return item->operation->has_to_fail; });
  std::vector<Request> requests;
  for (InFlight* member : members) requests.push_back(request_of(*member, dice_));
  const std::vector<Work> works = engine_.runtime().submit_group(std::move(requests));
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i]->work = works[i];
    members[i]->has_to_fail = has_to_fail;
  }
}

RandomRank::InFlight RandomRank::prepare(const RandomOperation& operation) {
  if (operation.kind == Collective::Barrier) {
    return {&operation, Elements(DataType::U8, 0), Elements(DataType::U8, 0)};
  }
  InFlight item{&operation, input_of(operation, rank_), output_of(operation)};
  item.has_to_fail = operation.has_to_fail;
  item.in_place = operation.kind == Collective::Allreduce && dice_.one_in(2);
  if (const auto offset = offsets_.find(&operation); offset != offsets_.end()) {
    item.in_place = true;
    item.symmetric = heap_->own(offset->second);
    std::ranges::copy(item.input.bytes(), item.symmetric);
  }
  if (operation.kind == Collective::Broadcast && operation.root == rank_) {
    item.in_place = dice_.one_in(2);
  }
  if (item.in_place) {
    item.output = item.input;
  } else {
    std::fill_n(static_cast<std::byte*>(item.output.data()), item.output.bytes().size(),
                kUntouched);
  }
  return item;
}

std::int64_t RandomRank::part_rows(const RandomOperation& operation, int rank) const {
  const std::int64_t rows = operation.rows[0];
  return rows / ranks_ + (rank < rows % ranks_ ? 1 : 0);
}

/// In rows, of the part that this rank keeps.
std::int64_t RandomRank::part_begin(const RandomOperation& operation) const {
  std::int64_t begin = 0;
  for (int rank = 0; rank < rank_; ++rank) begin += part_rows(operation, rank);
  return begin;
}

/// What rank `from` sends to rank `to` in an alltoall.
std::int64_t rows_sent(const RandomOperation& operation, int from, int to) {
  const auto sender = static_cast<std::size_t>(from);
  if (operation.splits[sender].empty()) {
    return operation.rows[sender] / static_cast<std::int64_t>(operation.rows.size());
  }
  return operation.splits[sender][static_cast<std::size_t>(to)];
}

Elements RandomRank::output_of(const RandomOperation& operation) const {
  std::int64_t rows = operation.rows[static_cast<std::size_t>(rank_)];
  if (operation.kind == Collective::Allgather) {
    rows = std::accumulate(operation.rows.begin(), operation.rows.end(), std::int64_t{0});
  }
  if (operation.kind == Collective::Reducescatter) rows = part_rows(operation, rank_);
  if (operation.kind == Collective::Alltoall) {
    rows = 0;
    for (int from = 0; from < ranks_; ++from) rows += rows_sent(operation, from, rank_);
  }
  return Elements(operation.dtype, static_cast<std::size_t>(rows * operation.columns));
}

Request RandomRank::request_of(Collective kind) const {
  Request request;
  request.kind = kind;
  if (engine_.set) request.set = *engine_.set;
  return request;
}

Request RandomRank::request_of(InFlight& item, Dice& dice) const {
  const RandomOperation& operation = *item.operation;
  Request request = request_of(operation.kind);
  request.name = operation.name;
  if (dice.one_in(20)) request.timeout = kLongTimeout;
  if (operation.refuses == rank_) request.refusal = "it cannot";
  if (operation.kind == Collective::Barrier) return request;
  const auto rank = static_cast<std::size_t>(rank_);
  request.dtype = operation.dtype;
  request.wire_dtype = operation.wire_dtype;
  request.op = operation.op;
  request.prescale = operation.prescale;
  request.postscale = operation.postscale;
  request.root = operation.root;
  request.shape = {operation.rows[rank], operation.columns};
  if (operation.kind == Collective::Send) return message_of(item, std::move(request), dice);
  request.contributes = operation.contributes[rank];
  if (operation.kind == Collective::Alltoall) request.splits = operation.splits[rank];
  request.input = item.in_place ? item.output.data() : item.input.data();
  if (item.symmetric != nullptr) {
    request.symmetric = true;
    request.lazy = dice.one_in(2);
    request.input = request.output = item.symmetric;
    return request;
  }
  if (!request.contributes && dice.one_in(2)) request.input = nullptr;
  const bool may_allocate = is_by_rank(operation.kind) || operation.kind == Collective::Allgather;
  if (may_allocate && dice.one_in(2)) {
    request.allocate_output = [&item](const std::vector<std::int64_t>& shape) {
      item.allocated = shape;
      return item.output.data();
    };
  } else {
    request.output = item.output.data();
  }
  return request;
}

Request RandomRank::message_of(InFlight& item, Request request, Dice& dice) const {
  const RandomOperation& operation = *item.operation;
  const bool sends = operation.root == rank_;
  // Without a name, messages of several ranks have the same tag.
  const bool from_any = !sends && !operation.name.empty() && dice.one_in(3);
  request.name.clear();
  request.kind = sends ? Collective::Send : Collective::Recv;
  request.tag = operation.tag();
  request.peer = from_any ? kAnyRank : sends ? operation.to : operation.root;
  if (sends) request.input = item.input.data();
  if (!sends) request.output = item.output.data();
  return request;
}

void RandomRank::wait_for_all() {
  std::vector<InFlight*> order;
  for (InFlight& item : flight_) order.push_back(&item);
  dice_.shuffle(order);
  for (InFlight* item : order) wait_for(*item);
}

void RandomRank::wait_for(InFlight& item) {
  if (item.waited) return;
  switch (dice_.below(4)) {
    case 0:
      // Whoever only asks does not say that it waits, so a frozen schedule is given up late.
      for (std::size_t i = dice_.below(6); i > 0 && !item.work.done(); --i) {
        std::this_thread::yield();
      }
      break;
    case 1:
      try {
        static_cast<void>(item.work.wait_for(std::chrono::microseconds(dice_.below(500))));
      } catch (const UsageError&) {
        // Judged in finish(), where it is thrown again.
      }
      break;
    default:
      break;
  }
  finish(item);
}

void RandomRank::finish(InFlight& item) {
  item.waited = true;
  const std::string text = round_ + ": " + item.operation->text();
  bool refused = false;
  try {
    item.work.wait();
  } catch (const UsageError& error) {
    if (!item.has_to_fail) throw std::runtime_error(text + ": " + error.what());
    refused = true;
  }
  if (refused != item.has_to_fail) {
    throw std::runtime_error(text + ": it had to fail, and nothing was thrown");
  }
  auto* const output = static_cast<std::byte*>(item.output.data());
  if (item.symmetric != nullptr) std::copy_n(item.symmetric, item.output.bytes().size(), output);
  const std::string difference = refused ? "" : this->difference(item);
  if (!item.work.done()) throw std::runtime_error(text + ": waited for, and not done");
  if (!difference.empty()) throw std::runtime_error(text + ": " + difference);
  if (refused) return;
  for (const std::string& what : item.operation->special()) {
    ++reached_[what];
    if (item.operation->is_grouped()) ++reached_[what + " in a group"];
    if (!item.participants.empty()) ++reached_[what + " of joined ranks"];
  }
}

std::string RandomRank::difference(const InFlight& item) const {
  const RandomOperation& operation = *item.operation;
  if (operation.kind == Collective::Barrier) return "";
  if (!item.in_place && item.input != input_of(operation, rank_)) return "the input was changed";
  if (item.allocated) {
    const std::int64_t elements = (*item.allocated)[0] * operation.columns;
    const bool fits = item.allocated->size() == 2 && (*item.allocated)[1] == operation.columns &&
                      static_cast<std::size_t>(elements) == item.output.count();
    if (!fits) return "the result's shape is wrong";
  }
  if (is_reduction(operation.kind)) return difference_of_reduction(item);
  if (operation.kind == Collective::Send) return difference_of_message(item);
  return difference_of_bytes(item);
}

std::string RandomRank::difference_of_reduction(const InFlight& item) const {
  const RandomOperation& operation = *item.operation;
  if (item.work.contributed() != anybody_contributes(operation)) return "contributed() is wrong";
  if (!item.work.contributed()) {
    if (item.symmetric != nullptr) return "";  // the neutral element, of which nothing is promised
    const bool kept = item.in_place ? item.output == input_of(operation, rank_)
                                    : all_untouched(item.output.bytes());
    return kept ? "" : "nobody contributed, and the output was written";
  }
  if (operation.kind == Collective::Reduce && rank_ != operation.root) {
    const bool kept = item.in_place ? item.output == input_of(operation, rank_)
                                    : all_untouched(item.output.bytes());
    return kept ? "" : "this rank is not the root, and the output was written";
  }
  const bool scatters = operation.kind == Collective::Reducescatter;
  const auto begin =
      static_cast<std::size_t>(scatters ? part_begin(operation) * operation.columns : 0);
  std::vector<Elements> inputs;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const bool brings =
        operation.contributes[index] && (item.participants.empty() || item.participants[index]);
    if (brings) {
      inputs.push_back(input_of(operation, rank));
    } else if (!is_elementwise(operation.op)) {
      inputs.emplace_back(operation.dtype, item.output.count());
    }
  }
  const bool over_all = item.participants.empty() || engine_.join_averages_over_all;
  const auto ranks =
      over_all ? ranks_ : static_cast<int>(std::ranges::count(item.participants, true));
  const Reduction reduction = {operation.dtype,     operation.op, operation.prescale,
                               operation.postscale, ranks,        operation.wire_dtype,
                               engine_.hosts};
  return first_difference(reduction, inputs, item.output, begin);
}

std::string RandomRank::difference_of_bytes(const InFlight& item) const {
  const RandomOperation& operation = *item.operation;
  const std::size_t row_bytes =
      static_cast<std::size_t>(operation.columns) * size_of(operation.dtype);
  std::vector<std::byte> expected;
  std::vector<std::int64_t> received;
  for (int from = 0; from < ranks_; ++from) {
    if (operation.kind == Collective::Broadcast && from != operation.root) continue;
    const Elements input = input_of(operation, from);
    std::size_t begin = 0;
    std::size_t bytes = input.bytes().size();
    if (operation.kind == Collective::Alltoall) {
      for (int to = 0; to < rank_; ++to) {
        begin += static_cast<std::size_t>(rows_sent(operation, from, to)) * row_bytes;
      }
      received.push_back(rows_sent(operation, from, rank_));
      bytes = static_cast<std::size_t>(received.back()) * row_bytes;
    }
    const auto part = input.bytes().subspan(begin, bytes);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  if (item.work.received_splits() != received) return "the received splits are wrong";
  return std::ranges::equal(item.output.bytes(), expected) ? "" : "other bytes came";
}

std::string RandomRank::difference_of_message(const InFlight& item) const {
  const RandomOperation& operation = *item.operation;
  const bool sends = operation.root == rank_;
  if (item.work.source() != (sends ? -1 : operation.root)) return "the source is wrong";
  if (sends) return all_untouched(item.output.bytes()) ? "" : "the sender's output was written";
  return item.output == input_of(operation, operation.root) ? "" : "another message came";
}

void RandomRank::keep_checksum(const InFlight& item) {
  const RandomOperation& operation = *item.operation;
  const bool is_same_on_all = operation.kind != Collective::Barrier &&
                              operation.kind != Collective::Send &&
                              operation.kind != Collective::Reduce && !is_by_rank(operation.kind);
  if (!is_same_on_all || operation.has_to_fail || !anybody_contributes(operation)) return;
  checksums_.push_back(checksum(item.output.bytes()));
  checksum_texts_.push_back(round_ + ": " + operation.text());
}

namespace {

std::vector<int> random_members(Dice& dice, int ranks) {
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  dice.shuffle(members);
  members.resize(1 + dice.below(members.size()));
  return members;
}

}  // namespace

RandomPrograms::RandomPrograms(const RandomRank::Engine& engine, int rank, int ranks,
                               std::uint64_t seed)
    : runtime_(engine.runtime()), program_(seed, ranks), of_all_(engine, rank, ranks, seed) {
  Dice dice(seed);
  const std::size_t sets = dice.below(4);
  for (std::size_t i = 0; i < sets; ++i) {
    const std::vector<int> members = random_members(dice, ranks);
    // Two sets may have the same members, in the same order.
    const std::string tag = dice.one_in(2) ? "set " + std::to_string(i) : "";
    RandomRank::Engine own = engine;
    own.set = std::make_shared<ProcessSet>();
    if (tag.empty()) *own.set = runtime_.add_process_set(members);
    const std::uint64_t program = dice.number();
    const auto place = static_cast<int>(std::ranges::find(members, rank) - members.begin());
    const auto size = static_cast<int>(members.size());
    if (place == size) continue;
    players_.push_back({members, tag, own.set, RandomProgram(program, size),
                        RandomRank(own, place, size, program)});
  }
}

void RandomPrograms::play_one(Player& player, int rounds) const {
  const auto play_some = [&player](int some) {
    for (int round = 0; round < some; ++round) player.rank.play(player.program.next());
  };
  if (player.tag.empty()) return play_some(rounds);
  for (const int some : {rounds / 2, rounds - rounds / 2}) {
    *player.set = runtime_.create_process_set(player.members, player.tag);
    play_some(some);
    runtime_.remove_process_set(*player.set);
  }
}

void RandomPrograms::play(int rounds) {
  ThreadErrors errors;
  std::vector<std::thread> threads;
  for (Player& player : players_) {
    threads.emplace_back([&] { errors.catch_from([&] { play_one(player, rounds / 2); }); });
  }
  errors.catch_from([&] {
    for (int round = 0; round < rounds; ++round) of_all_.play(program_.next());
  });
  for (std::thread& thread : threads) thread.join();
  errors.rethrow();
}

}  // namespace ronde::test
