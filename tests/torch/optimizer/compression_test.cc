// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/support.h"

namespace ronde_test::compression_test {
namespace {

using ronde::CompressedGradient;
using ronde::CompressedPart;
using ronde::GradientReduction;
using Parts = std::vector<CompressedPart>;

/// One matrix, whose gradient is what the loss says.
struct Matrix {
  explicit Matrix(at::ScalarType dtype = at::kDouble)
      : p(at::zeros({6, 4}, dtype).requires_grad_()) {}
  void backward(const at::Tensor& gradient) { (p * gradient).sum().backward(); }
  const at::Tensor p;
  Names names = {{"p", p}};
  torch::optim::SGD sgd{{p}, 1.0};
};

at::Tensor gradient_of(int step, int rank, at::ScalarType dtype = at::kDouble) {
  return normal({6, 4}, 500 + 10 * step + rank, dtype);
}

constexpr std::int64_t kKept = 5;

/// Places and values of the largest elements of what was not sent so far.
std::pair<at::Tensor, at::Tensor> largest(const at::Tensor& values) {
  const at::Tensor flat = values.reshape({-1});
  const at::Tensor places = std::get<1>(flat.abs().topk(kKept));
  return {places, flat.index_select(0, places)};
}

template <typename State>
class Compressor final : public Compression {
 public:
  std::string description() const override { return typeid(State).name(); }
  std::unique_ptr<CompressedGradient> make(const std::string&,
                                           const at::Tensor& parameter) override {
    return std::make_unique<State>(parameter);
  }
};

/// The largest elements alone, and what is left out is added to the next step's gradient (error
/// feedback: Seide et al., 2014). Places and values travel in one round.
class TopK final : public CompressedGradient {
 public:
  explicit TopK(const at::Tensor& parameter) : left_over_(at::zeros_like(parameter).detach()) {}

  Parts compress(const at::Tensor& gradient, const GradientReduction& reduction) override {
    const at::Tensor wanted = left_over_ + gradient;
    const auto [places, values] = largest(wanted);
    // Nothing of it is sent without a gradient: it is left over once more.
    left_over_ = wanted;
    if (reduction.contributes)
      left_over_ = wanted.reshape({-1}).index_fill(0, places, 0).view_as(gradient);
    scale_ = reduction.prescale * reduction.postscale;
    if (reduction.op == ReduceOp::Average) scale_ /= reduction.ranks;
    return {{.tensor = places, .combine = CompressedPart::Combine::Gather},
            {.tensor = values, .combine = CompressedPart::Combine::Gather}};
  }

  Parts decompress(const Tensors& results, const at::Tensor& gradient) override {
    gradient.zero_();
    gradient.view(-1).index_add_(0, results[0], results[1] * scale_);
    return {};
  }

 private:
  at::Tensor left_over_;
  double scale_ = 1.0;
};

at::Tensor orthonormal(const at::Tensor& matrix) {
  return std::get<0>(at::linalg_qr(matrix));
}

/// Low rank, by one power iteration a step that begins with the last one's factor (PowerSGD: Vogels
/// et al., 2019). Two rounds, the second made of the first's result.
class LowRank final : public CompressedGradient {
 public:
  explicit LowRank(const at::Tensor& parameter) : q_(normal({parameter.size(1), 2}, 77)) {}

  Parts compress(const at::Tensor& gradient, const GradientReduction&) override {
    own_ = gradient.clone();
    return {{.tensor = own_.matmul(q_)}};
  }

  Parts decompress(const Tensors& results, const at::Tensor& gradient) override {
    if (own_.defined()) {
      p_ = orthonormal(results.front());
      return {{.tensor = std::exchange(own_, {}).t().matmul(p_)}};
    }
    q_ = results.front().clone();
    gradient.copy_(p_.matmul(q_.t()));
    return {};
  }

 private:
  at::Tensor own_, p_;
  at::Tensor q_;
};

struct Silent final : CompressedGradient {
  explicit Silent(const at::Tensor&) {}
  Parts compress(const at::Tensor&, const GradientReduction&) override { return {}; }
  Parts decompress(const Tensors&, const at::Tensor&) override { return {}; }
};

/// Computes the expected gradient of a step; gradients of ranks without one are undefined.
using Oracle = std::function<at::Tensor(const Tensors& of_ranks)>;

/// Trains a matrix with it, and one that no rank has a gradient of.
void check_steps(const std::shared_ptr<Compression>& compression, const Oracle& oracle,
                 bool all_have_gradients, int groups) {
  Matrix matrix;
  const at::Tensor unused = ones_parameter({6, 4});
  matrix.names.insert("unused", unused);
  auto optimizer = wrapped_sgd(matrix.names, {.groups = groups, .compression = compression});
  for (int step = 0; step < 200; ++step) {
    CAPTURE(step);
    const Tensors gradients = by_rank([&](int rank) {
      const bool has_one = all_have_gradients || rank == 0 || step % 3 == 0;
      return has_one ? gradient_of(step, rank) : at::Tensor();
    });
    optimizer.zero_grad();
    if (mine_of(gradients).defined()) matrix.backward(mine_of(gradients));
    optimizer.synchronize();
    REQUIRE(matrix.p.grad().defined());
    CHECK(near(matrix.p.grad(), oracle(gradients), 1e-10));
    CHECK_FALSE(unused.grad().defined());
    optimizer.step();
  }
  CHECK(same_on_all_ranks(matrix.p));
}

/// Computes TopK for all ranks in one process.
Oracle top_k_oracle() {
  Tensors left_over = by_rank([](int) { return at::zeros({6, 4}, at::kDouble); });
  return [left_over](const Tensors& of_ranks) mutable {
    at::Tensor sum = at::zeros({24}, at::kDouble);
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      if (!of_ranks[rank].defined()) continue;
      const at::Tensor wanted = left_over[rank] + of_ranks[rank];
      const auto [places, values] = largest(wanted);
      const at::Tensor sent = at::zeros({24}, at::kDouble).index_copy(0, places, values);
      left_over[rank] = wanted - sent.view({6, 4});
      sum = sum + sent;
    }
    return sum.view({6, 4}) / static_cast<double>(of_ranks.size());
  };
}

/// Computes LowRank for all ranks in one process.
Oracle low_rank_oracle() {
  return [q = normal({4, 2}, 77)](const Tensors& of_ranks) mutable {
    at::Tensor mean = at::zeros({6, 4}, at::kDouble);
    for (const at::Tensor& gradient : of_ranks) {
      if (gradient.defined()) mean += gradient / static_cast<double>(of_ranks.size());
    }
    const at::Tensor p = orthonormal(mean.matmul(q));
    q = mean.t().matmul(p);
    return p.matmul(q.t());
  };
}

/// The gradient of a matrix of this type, where each rank's was `gradient`.
at::Tensor reduced(const at::Tensor& gradient, const std::shared_ptr<Compression>& compression) {
  Matrix matrix(gradient.scalar_type());
  DistributedOptimizer optimizer(matrix.sgd, matrix.names, {.compression = compression});
  matrix.backward(gradient);
  optimizer.synchronize();
  return matrix.p.grad();
}

TEST_CASE("half-precision gradients are those that LibTorch's conversions give", "[n2]") {
  struct Row {
    at::ScalarType dtype;
    std::shared_ptr<Compression> compression;
    at::ScalarType wire;
    double factor;
  };
  const auto fp16 = Compression::fp16();
  const auto bf16 = Compression::bf16();
  const std::vector<Row> rows = {
      {at::kFloat, fp16, at::kHalf, 1.0},
      {at::kFloat, bf16, at::kBFloat16, 1.0},
      {at::kFloat, fp16, at::kHalf, 1e6},  // which is too large for it
      {at::kFloat, bf16, at::kBFloat16, 1e6},
      {at::kBFloat16, fp16, at::kBFloat16, 1e6},  // compression leaves half types as they are
  };
  for (const Row& row : rows) {
    CAPTURE(at::toString(row.dtype), row.compression->description(), row.factor);
    const Tensors gradients = by_rank(
        [&](int rank) { return ((gradient_of(0, rank).abs() + 1) * row.factor).to(row.dtype); });
    at::Tensor sum = at::zeros({6, 4});
    for (const at::Tensor& gradient : gradients) sum += gradient.to(row.wire).to(at::kFloat);
    const at::Tensor exact = sum / ronde::size();
    const at::Tensor expected = exact.to(row.wire).to(row.dtype);
    CHECK(torch::equal(reduced(mine_of(gradients), row.compression), expected));
    const bool is_infinite = row.wire == at::kHalf && row.factor > 1;
    CHECK(at::isinf(expected).all().item<bool>() == is_infinite);
    CHECK(torch::equal(expected.to(at::kFloat), exact) == is_infinite);
  }
}

TEST_CASE("compressed gradients are half the bytes on the wire", "[n2]") {
  const auto bytes_of = [](const std::shared_ptr<Compression>& compression) {
    Matrix matrix(at::kFloat);
    DistributedOptimizer optimizer(
        matrix.sgd, matrix.names,
        {.name = "wire", .gradient_views = false, .compression = compression});
    const auto step = [&] {
      const std::uint64_t before = counted("execution", "bytes");
      optimizer.zero_grad();
      matrix.backward(gradient_of(0, ronde::rank(), at::kFloat));
      optimizer.step();
      return counted("execution", "bytes") - before;
    };
    step();  // in which the ranks compare parameters, too
    return step();
  };
  const std::uint64_t plain = bytes_of(nullptr);
  const std::uint64_t uncompressed_before = counted("execution", "uncompressed_bytes");
  CHECK(plain == 24 * sizeof(float));
  CHECK(bytes_of(Compression::bf16()) == plain / 2);
  CHECK(counted("execution", "uncompressed_bytes") - uncompressed_before >= plain);
}

TEST_CASE("a compressor of the program's may remember what it left, and need several rounds") {
  const int groups = GENERATE(0, 1);
  const bool all = GENERATE(true, false);
  CAPTURE(groups, all);
  check_steps(std::make_shared<Compressor<TopK>>(), top_k_oracle(), all, groups);
  check_steps(std::make_shared<Compressor<LowRank>>(), low_rank_oracle(), all, groups);
}

TEST_CASE("a compressor of the program's that sends nothing is refused", "[n2]") {
  Matrix matrix;
  DistributedOptimizer optimizer(matrix.sgd, matrix.names,
                                 {.compression = std::make_shared<Compressor<Silent>>()});
  matrix.backward(gradient_of(0, 0));
  check_refused([&] { optimizer.step(); }, {"nothing to send"});
}

}  // namespace
}  // namespace ronde_test::compression_test
