// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle/forms.h"

#include <algorithm>

#include "tests/support/oracle/oracle.h"

namespace ronde::test {
namespace {

/// Alltoall: rows from one rank of a set to another.
std::size_t rows_between(const Row& row, int from, int to) {
  if (row.spread == Spread::Even) return 2;
  return static_cast<std::size_t>(row.spread == Spread::Uneven ? (2 * from + to) % 3
                                  : to == 0                    ? 10 * from
                                                               : 0);
}

/// Alltoall: rows of `from` that go to ranks before `to`.
std::size_t rows_before(const Row& row, int from, int to) {
  std::size_t rows = 0;
  for (int earlier = 0; earlier < to; ++earlier) rows += rows_between(row, from, earlier);
  return rows;
}

/// Rows of the input of `rank` of a set of `size`.
std::size_t input_rows(const Row& row, int rank, int size) {
  const bool is_even = row.spread == Spread::Even;
  const bool is_skewed = row.spread == Spread::Skewed;
  switch (row.kind) {
    case Collective::Allgather:
      return static_cast<std::size_t>(is_even ? 2 : is_skewed ? 10 * rank : 2 * rank + 1);
    case Collective::Reducescatter:
      return static_cast<std::size_t>(is_even ? 2 * size : is_skewed ? 1 : 2 * size + 1);
    case Collective::Alltoall:
      return rows_before(row, rank, size);
    default:
      return is_skewed ? 1 : 3;
  }
}

/// Reducescatter: the first row that `rank` keeps; of rank `size`, how many rows there are.
std::size_t kept_rows_begin(const Row& row, int rank, int size) {
  const std::size_t rows = input_rows(row, rank, size);
  const auto ranks = static_cast<std::size_t>(size);
  const auto before = static_cast<std::size_t>(rank);
  return before * (rows / ranks) + std::min(before, rows % ranks);
}

/// What every member of the set puts in, by its rank in the set.
std::vector<Elements> inputs_of(const Row& row, const Place& place) {
  std::vector<Elements> inputs;
  for (int rank = 0; rank < place.size(); ++rank) {
    const std::size_t count = input_rows(row, rank, place.size()) * row.width;
    const int seed = place.ranks[static_cast<std::size_t>(rank)];
    inputs.push_back(is_reduction(row.kind) ? make_input(row.dtype, row.op, count, seed, 11)
                                            : make_bytes(row.dtype, count, seed, 11));
  }
  return inputs;
}

/// What a collective that only moves elements brings to this rank.
std::vector<std::byte> moved(const Row& row, const Place& place,
                             const std::vector<Elements>& inputs) {
  const int previous = (place.rank + place.size() - 1) % place.size();
  std::vector<std::byte> bytes;
  for (int from = 0; from < place.size(); ++from) {
    if (row.kind == Collective::Broadcast && from != row.root) continue;
    if (row.kind == Collective::Send && from != previous) continue;
    const Elements& input = inputs[static_cast<std::size_t>(from)];
    const auto part = row.kind == Collective::Alltoall
                          ? input.bytes(rows_before(row, from, place.rank) * row.width,
                                        rows_between(row, from, place.rank) * row.width)
                          : input.bytes();
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

std::string first_different_byte(const std::vector<std::byte>& expected, const Elements& result) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (result.bytes()[i] == expected[i]) continue;
    return "byte " + std::to_string(i) + " of " + std::to_string(expected.size()) + " is " +
           std::to_string(std::to_integer<int>(result.bytes()[i])) + ", not " +
           std::to_string(std::to_integer<int>(expected[i]));
  }
  return {};
}

std::string difference(const Row& row, const Place& place, const std::vector<Elements>& inputs,
                       const Elements& result) {
  if (!is_reduction(row.kind)) return first_different_byte(moved(row, place, inputs), result);
  if (row.kind == Collective::Reduce && row.root != place.rank) {
    const Elements untouched = row.in_place ? inputs[static_cast<std::size_t>(place.rank)]
                                            : Elements(row.dtype, result.count());
    return result == untouched ? "" : "a rank that is not the root wrote to its output";
  }
  const bool scatters = row.kind == Collective::Reducescatter;
  const std::size_t first = scatters ? kept_rows_begin(row, place.rank, place.size()) : 0;
  const Reduction reduction = {row.dtype,     row.op,       row.prescale,
                               row.postscale, place.size(), row.wire_dtype};
  return first_difference(reduction, inputs, result, first * row.width);
}

/// Rows of this rank's result.
std::size_t result_rows(const Row& row, const Place& place) {
  if (row.kind == Collective::Reducescatter) {
    return kept_rows_begin(row, place.rank + 1, place.size()) -
           kept_rows_begin(row, place.rank, place.size());
  }
  if (row.kind != Collective::Allgather && row.kind != Collective::Alltoall) {
    return input_rows(row, place.rank, place.size());
  }
  std::size_t rows = 0;
  for (int from = 0; from < place.size(); ++from) {
    rows += row.kind == Collective::Allgather ? input_rows(row, from, place.size())
                                              : rows_between(row, from, place.rank);
  }
  return rows;
}

Request request_of(const Row& row, const Place& place) {
  Request request;
  request.kind = row.kind;
  request.name = "row";
  request.dtype = row.dtype;
  request.op = row.op;
  request.set = place.set;
  request.root = row.root;
  request.wire_dtype = row.wire_dtype;
  request.prescale = row.prescale;
  request.postscale = row.postscale;
  const std::size_t rows = input_rows(row, place.rank, place.size());
  request.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(row.width)};
  if (row.kind == Collective::Alltoall && row.spread != Spread::Even) {
    for (int to = 0; to < place.size(); ++to) {
      request.splits.push_back(static_cast<std::int64_t>(rows_between(row, place.rank, to)));
    }
  }
  return request;
}

/// Input and output share memory that is large enough for either: at its begin, but for the part
/// that this rank adds to an allgather, or keeps of a reducescatter.
void run_in_place(Runtime& runtime, const Row& row, const Place& place, const Elements& input,
                  Elements& output) {
  Request request = request_of(row, place);
  const std::size_t row_bytes = row.width * size_of(row.dtype);
  Elements both(input.dtype(), std::max(input.count(), output.count()));
  auto* const begin = static_cast<std::byte*>(both.data());
  std::byte* from = begin;
  std::byte* to = begin;
  if (row.kind == Collective::Allgather) {
    for (int rank = 0; rank < place.rank; ++rank) {
      from += input_rows(row, rank, place.size()) * row_bytes;
    }
  }
  if (row.kind == Collective::Reducescatter) {
    to += kept_rows_begin(row, place.rank, place.size()) * row_bytes;
  }
  std::ranges::copy(input.bytes(), from);
  request.input = from;
  request.output = to;
  runtime.run(request);
  std::copy_n(to, output.bytes().size(), static_cast<std::byte*>(output.data()));
}

/// From the input to another place. Returns what is wrong with the received splits or the result's
/// shape.
std::string run_apart(Runtime& runtime, const Row& row, const Place& place, const Elements& input,
                      Elements& output) {
  Request request = request_of(row, place);
  const bool is_read = row.kind != Collective::Broadcast || place.rank == row.root;
  if (is_read) request.input = input.data();
  const std::vector<std::int64_t> expected = {static_cast<std::int64_t>(result_rows(row, place)),
                                              static_cast<std::int64_t>(row.width)};
  std::vector<std::int64_t> shape = expected;
  const bool may_allocate = row.kind == Collective::Allgather || row.kind == Collective::Alltoall ||
                            row.kind == Collective::Reducescatter;
  if (row.allocated && may_allocate) {
    request.allocate_output = [&](const std::vector<std::int64_t>& asked) {
      shape = asked;
      return output.data();
    };
  } else {
    request.output = output.data();
  }
  const Work work = runtime.submit(std::move(request));
  work.wait();
  std::vector<std::int64_t> received;
  for (int from = 0; row.kind == Collective::Alltoall && from < place.size(); ++from) {
    received.push_back(static_cast<std::int64_t>(rows_between(row, from, place.rank)));
  }
  if (work.received_splits() != received) return "the received splits are wrong";
  return shape == expected ? "" : "the shape of the result is wrong";
}

/// Around the set: to the next rank, from the one before.
void run_message(Runtime& runtime, const Row& row, const Place& place, const Elements& input,
                 Elements& output) {
  Request send = request_of(row, place);
  send.name.clear();
  send.input = input.data();
  send.peer = (place.rank + 1) % place.size();
  Request receive = send;
  receive.kind = Collective::Recv;
  receive.input = nullptr;
  receive.output = output.data();
  receive.peer = row.in_place ? kAnyRank : (place.rank + place.size() - 1) % place.size();
  const Work sent = runtime.submit(send);
  const Work received = runtime.submit(receive);
  sent.wait();
  received.wait();
}

std::vector<Row> rows_of(DataType dtype) {
  std::vector<Row> rows;
  for (const Collective kind :
       {Collective::Allreduce, Collective::Reduce, Collective::Reducescatter}) {
    for (const ReduceOp op : ops_of(dtype)) {
      rows.push_back({.kind = kind, .dtype = dtype, .op = op});
      if (is_floating(dtype) || !can_have_factors(dtype, op)) continue;
      rows.push_back({.kind = kind, .dtype = dtype, .op = op, .prescale = 0.3, .postscale = -2});
    }
  }
  for (const Collective kind :
       {Collective::Broadcast, Collective::Allgather, Collective::Alltoall, Collective::Send}) {
    rows.push_back({.kind = kind, .dtype = dtype});
  }
  return rows;
}

}  // namespace

std::string run_row(const Row& row, Runtime& runtime, const Place& place) {
  const std::vector<Elements> inputs = inputs_of(row, place);
  const Elements input = inputs[static_cast<std::size_t>(place.rank)];
  Elements output(row.dtype, result_rows(row, place) * row.width);
  std::string wrong;
  if (row.kind == Collective::Send) {
    run_message(runtime, row, place, input, output);
  } else if (row.in_place) {
    run_in_place(runtime, row, place, input, output);
  } else {
    wrong = run_apart(runtime, row, place, input, output);
  }
  if (input != inputs[static_cast<std::size_t>(place.rank)]) return "the input was changed";
  return wrong.empty() ? difference(row, place, inputs, output) : wrong;
}

std::string run_rows(DataType dtype, Runtime& runtime, const Place& place) {
  std::string all_wrong;
  for (Row row : rows_of(dtype)) {
    if (row.kind == Collective::Send && place.size() == 1) continue;  // no rank sends to itself
    for (const bool in_place : {false, true}) {
      row.in_place = in_place;
      const std::string wrong = run_row(row, runtime, place);
      if (wrong.empty()) continue;
      all_wrong += std::string(to_string(row.kind)) + " of " + std::string(to_string(dtype)) + " " +
                   std::string(to_string(row.op)) + (in_place ? " in place" : "") +
                   (row.prescale != 1.0 ? " scaled" : "") + ": " + wrong + "\n";
    }
  }
  return all_wrong;
}

}  // namespace ronde::test
