// SPDX-License-Identifier: Apache-2.0
#include "expected.h"

#include <algorithm>
#include <cstddef>

#include "oracle.h"

namespace ronde::test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes rows_of_bytes(const Elements& elements, std::size_t first, std::size_t count) {
  const std::size_t width = kWidth * size_of(elements.dtype());
  const auto begin = elements.bytes().begin() + static_cast<std::ptrdiff_t>(first * width);
  return Bytes(begin, begin + static_cast<std::ptrdiff_t>(count * width));
}

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

/// What a collective that only moves elements brings to this rank.
Bytes moved(const Case& row, const Place& place, const std::vector<Elements>& inputs) {
  const auto all_of = [&](std::size_t rank) {
    return rows_of_bytes(inputs[rank], 0, inputs[rank].count() / kWidth);
  };
  const auto rank = static_cast<std::size_t>(place.rank);
  if (row.kind == Collective::Broadcast) return all_of(0);
  if (row.kind == Collective::Send) return all_of((rank + inputs.size() - 1) % inputs.size());
  Bytes bytes;
  for (std::size_t from = 0; from < inputs.size(); ++from) {
    if (row.kind == Collective::Allgather) {
      append(bytes, all_of(from));
      continue;
    }
    std::size_t before = 0;
    for (int to = 0; to < place.rank; ++to) before += rows_between(static_cast<int>(from), to);
    append(bytes,
           rows_of_bytes(inputs[from], before, rows_between(static_cast<int>(from), place.rank)));
  }
  return bytes;
}

/// The elements [begin, begin + count) of all inputs, rank after rank.
template <typename Number>
std::vector<Number> cut(const std::vector<std::vector<Number>>& inputs, std::size_t begin,
                        std::size_t count) {
  std::vector<Number> all;
  for (const std::vector<Number>& input : inputs) {
    const auto first = input.begin() + static_cast<std::ptrdiff_t>(begin);
    all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(count));
  }
  return all;
}

}  // namespace

std::string difference(const Case& row, const Place& place, const std::vector<Elements>& inputs,
                       const Elements& result) {
  const bool scatters = row.kind == Collective::Reducescatter;
  if (row.kind != Collective::Allreduce && !scatters) {
    const Bytes expected = moved(row, place, inputs);
    const bool same =
        std::equal(expected.begin(), expected.end(), result.bytes().begin(), result.bytes().end());
    return same ? "" : "other bytes than were sent";
  }
  std::size_t begin = 0;
  if (scatters) {
    const auto size = static_cast<std::size_t>(place.size());
    const auto rank = static_cast<std::size_t>(place.rank);
    const std::size_t rows = inputs[0].count() / kWidth;
    begin = (rank * (rows / size) + std::min(rank, rows % size)) * kWidth;
  }
  const Reduction reduction = {.dtype = row.dtype, .op = row.op, .ranks = place.size()};
  if (is_floating(row.dtype)) {
    std::vector<std::vector<double>> numbers;
    for (const Elements& input : inputs) numbers.push_back(input.numbers());
    return first_difference(reduction, cut(numbers, begin, result.count()), result);
  }
  std::vector<std::vector<std::int64_t>> integers;
  for (const Elements& input : inputs) integers.push_back(input.integers());
  return first_difference(reduction, cut(integers, begin, result.count()), result);
}

}  // namespace ronde::test
