// SPDX-License-Identifier: Apache-2.0
// Counts that no int holds. RONDE_FUSION_BYTES decides whether MPI sees them at once or in chunks.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/harness/case_table.h"

namespace ronde::test {
namespace {

constexpr std::size_t kCount = (std::size_t{1} << 31) + 12345;

/// Bytes without the zeroing of a vector.
class Bytes {
 public:
  explicit Bytes(std::size_t count) : data_(new std::uint8_t[count]), count_(count) {}
  std::uint8_t* begin() const { return data_.get(); }
  std::uint8_t* end() const { return data_.get() + count_; }

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t count_;
};

/// Differs between ranks, and between an element and its neighbours 2^31 or 2^32 before it.
std::uint8_t value_at(std::size_t index, int rank) {
  return static_cast<std::uint8_t>(index * 7 + (index >> 29) * 31 +
                                   static_cast<std::size_t>(rank) * 101);
}

/// Runs a collective on `count` elements of this rank, from root 1 or with the other rank, and
/// checks the `result_count` elements of the result. Input and result share memory unless their
/// sizes differ. Ends the group.
template <typename Given, typename Expected>
void check_big(Collective kind, std::size_t count, Given given, std::size_t result_count,
               Expected expected, std::vector<std::int64_t> splits = {}) {
  const bool is_apart = kind == Collective::Allgather || kind == Collective::Alltoall ||
                        kind == Collective::Reducescatter;
  const Bytes input(count);
  for (std::size_t i = 0; i < count; ++i) input.begin()[i] = given(i);
  const Bytes output(is_apart ? result_count : 0);
  std::fill(output.begin(), output.end(), std::uint8_t{0});
  std::uint8_t* const result = is_apart ? output.begin() : input.begin();
  Request request;
  request.kind = kind;
  if (kind != Collective::Send && kind != Collective::Recv) request.name = "big";
  request.root = 1;
  request.peer = 1 - ronde::rank();
  request.splits = std::move(splits);
  request.dtype = DataType::U8;
  request.shape = {static_cast<std::int64_t>(count)};
  if (kind != Collective::Recv) request.input = input.begin();
  if (kind != Collective::Send) request.output = result;
  ronde::submit(std::move(request)).wait();
  std::size_t right = 0;
  while (right < result_count && result[right] == expected(right)) ++right;
  CHECK(right == result_count);
  ronde::shutdown();
}

/// Element `index` of both ranks added.
std::uint8_t sum_at(std::size_t index) {
  return static_cast<std::uint8_t>(value_at(index, 0) + value_at(index, 1));
}

/// Elements of a rank.
auto values_of(int rank) {
  return [rank](std::size_t index) { return value_at(index, rank); };
}

/// Parts one behind the other, each of which counts its elements from 0.
auto parts_of(int first, std::size_t first_count, int second) {
  return [=](std::size_t index) {
    return index < first_count ? value_at(index, first) : value_at(index - first_count, second);
  };
}

TEST_CASE("allreduce of more than 2^31 elements") {
  ronde::init();
  check_big(Collective::Allreduce, kCount, values_of(ronde::rank()), kCount, sum_at);
}

TEST_CASE("broadcast of more than 2^31 elements") {
  ronde::init();
  check_big(Collective::Broadcast, kCount, values_of(ronde::rank()), kCount, values_of(1));
}

TEST_CASE("message of more than 2^31 elements") {
  ronde::init();
  const Collective kind = ronde::rank() == 1 ? Collective::Send : Collective::Recv;
  check_big(kind, kCount, values_of(ronde::rank()), kCount, values_of(1));
}

TEST_CASE("allgather of more than 2^31 elements") {
  ronde::init();
  // Rank 1 brings more, so that parts differ in size; together they are above the limit.
  const std::size_t counts[] = {kCount / 2 - 1000, kCount / 2 + 1001};
  check_big(Collective::Allgather, counts[ronde::rank()], values_of(ronde::rank()),
            counts[0] + counts[1], parts_of(0, counts[0], 1));
}

TEST_CASE("alltoall of more than 2^31 elements") {
  ronde::init();
  const int own = ronde::rank();
  // counts[from][to]
  const std::size_t counts[2][2] = {{kCount / 2 - 1000, kCount / 2 + 1001},
                                    {kCount / 2 + 7, kCount / 2 - 6}};
  const auto marked = [](int from, int to) { return 2 * from + to; };
  const std::size_t* const sent = counts[own];
  check_big(Collective::Alltoall, sent[0] + sent[1],
            parts_of(marked(own, 0), sent[0], marked(own, 1)), counts[0][own] + counts[1][own],
            parts_of(marked(0, own), counts[0][own], marked(1, own)),
            {static_cast<std::int64_t>(sent[0]), static_cast<std::int64_t>(sent[1])});
}

TEST_CASE("reducescatter of more than 2^31 elements") {
  ronde::init();
  // Of an odd number of rows rank 0 gets one more.
  const std::size_t first = ronde::rank() == 0 ? 0 : kCount / 2 + 1;
  const std::size_t own = ronde::rank() == 0 ? kCount / 2 + 1 : kCount / 2;
  check_big(Collective::Reducescatter, kCount, values_of(ronde::rank()), own,
            [first](std::size_t i) { return sum_at(first + i); });
}

}  // namespace
}  // namespace ronde::test
