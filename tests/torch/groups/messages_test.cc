// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/layouts.h"

namespace ronde_test::messages_test {
namespace {

TEST_CASE("messages carry every dtype and layout around a ring", "[n2][n3][n4]") {
  const int next = (ronde::rank() + 1) % ronde::size();
  const int before = (ronde::rank() + ronde::size() - 1) % ronde::size();
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(kMovedDtypes.size()); ++i) {
    const at::ScalarType dtype = kMovedDtypes[static_cast<std::size_t>(i)];
    CAPTURE(c10::toString(dtype));
    const std::vector<std::int64_t> sizes = {2, 3, 4, 5};
    const at::Tensor out =
        laid_out(whole_numbers(sizes, ronde::rank(), i, dtype), ronde::rank(), i);
    const at::Tensor in = laid_out(at::zeros(sizes, dtype), ronde::rank(), i + 1);
    const auto strides = in.strides().vec();
    const TensorWork sent = ronde::send_async(out, {.peer = next, .tag = i});
    if (i % 2 == 0) {
      CHECK(ronde::recv_(in, {.peer = before, .tag = i}) == before);
    } else {
      const TensorWork received = ronde::recv_async_(in, {.tag = i});
      CHECK(received.wait().is_same(in));
      CHECK(received.source() == before);
    }
    CHECK_FALSE(sent.wait().defined());
    CHECK(same_bits(in, whole_numbers(sizes, before, i, dtype)));
    CHECK(in.strides().vec() == strides);
  }
}

TEST_CASE("messages without elements or dimensions, and from an expanded tensor", "[n2]") {
  const int other = 1 - ronde::rank();
  const auto exchange = [&](const at::Tensor& out, const at::Tensor& in) {
    const TensorWork sent = ronde::send_async(out, {.peer = other});
    CHECK(ronde::recv_(in) == other);
    sent.wait();
    return in;
  };
  CHECK(exchange(at::empty({0, 3}), at::empty({3, 0})).numel() == 0);
  const at::Tensor scalar = at::full({}, ronde::rank() + 1.0);
  CHECK(exchange(scalar, at::zeros({})).item<double>() == other + 1.0);
  CHECK(exchange(scalar, at::zeros({1, 1})).item<double>() == other + 1.0);
  const at::Tensor expanded = at::full({1}, ronde::rank() + 1.0).expand({4, 3});
  CHECK(torch::equal(exchange(expanded, at::zeros({4, 3})), at::full({4, 3}, other + 1.0)));
  // Shapes may differ: elements are matched in row-major order.
  const at::Tensor rows = at::arange(6, at::kFloat).reshape({2, 3});
  CHECK(
      torch::equal(exchange(rows.t(), at::zeros({6})), at::tensor({0.F, 3.F, 1.F, 4.F, 2.F, 5.F})));
}

TEST_CASE("what a message refuses", "[n2]") {
  const int other = 1 - ronde::rank();
  const at::Tensor tensor = at::ones({2});
  const std::string here = "rank " + std::to_string(ronde::rank()) + ": ronde::";
  const std::vector<std::pair<std::string, std::function<void()>>> refusals = {
      {here + "send(to rank " + std::to_string(other) + "): the tensor is undefined",
       [&] { ronde::send(at::Tensor(), {.peer = other}); }},
      {here + "recv_(from any rank) (f32 [3] on cpu): several elements",
       [&] { ronde::recv_(at::zeros({1}).expand({3})); }},
      {"Call to_dense()", [&] { ronde::send(tensor.to_sparse(), {.peer = other}); }},
      {"is this rank itself", [&] { ronde::send(tensor, {.peer = ronde::rank()}); }},
      {"peer 2 is out of range", [&] { ronde::recv_(tensor, {.peer = 2}); }},
      {"tag -1 is negative", [&] { ronde::send(tensor, {.peer = other, .tag = -1}); }},
      {"autograd computed this tensor",
       [&] { ronde::recv_(at::ones({2}).requires_grad_() * 2, {.peer = other}); }},
  };
  for (const auto& [text, call] : refusals) check_refused(call, {text});
  // Each sends two elements to the other, which wants three.
  const auto message = [](int from, int to) {
    return "the message from rank " + std::to_string(from) + " to rank " + std::to_string(to) +
           " (tag 0) differs between them";
  };
  const TensorWork sent = ronde::send_async(tensor, {.peer = other});
  check_refused([&] { ronde::recv_(at::zeros({3}), {.peer = other}); },
                {message(other, ronde::rank())});
  check_refused([&] { sent.wait(); }, {message(ronde::rank(), other)});
}

}  // namespace
}  // namespace ronde_test::messages_test
