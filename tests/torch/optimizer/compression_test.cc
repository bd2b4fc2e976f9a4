// SPDX-License-Identifier: Apache-2.0
// Compression of gradients: Ronde's own, and such as a program may bring.
#include "support.h"

namespace ronde_test::compression_test {

using ronde::CompressedGradient;
using ronde::CompressedPart;
using ronde::DistributedOptimizer;
using ronde::GradientReduction;

namespace {

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

/// The largest elements alone, and what is left out is added to the next step's gradient (error
/// feedback: Seide et al., 2014). Places and values travel in one round.
class TopK final : public ronde::Compression {
 public:
  std::string description() const override { return "top-5 with error feedback"; }
  std::unique_ptr<CompressedGradient> make(const std::string&,
                                           const at::Tensor& parameter) override {
    return std::make_unique<State>(parameter);
  }

 private:
  class State final : public CompressedGradient {
   public:
    explicit State(const at::Tensor& parameter) : left_over_(at::zeros_like(parameter).detach()) {}

    std::vector<CompressedPart> compress(const at::Tensor& gradient,
                                         const GradientReduction& reduction) override {
      const at::Tensor wanted = left_over_ + gradient;
      const auto [places, values] = largest(wanted);
      // Nothing of it is sent without a gradient: it is left over once more.
      left_over_ = wanted;
      if (reduction.contributes)
        left_over_ = wanted.reshape({-1}).index_fill(0, places, 0).view_as(gradient);
      scale_ = reduction.prescale * reduction.postscale;
      if (reduction.op == ronde::ReduceOp::Average) scale_ /= reduction.ranks;
      return {{.tensor = places, .combine = CompressedPart::Combine::Gather},
              {.tensor = values, .combine = CompressedPart::Combine::Gather}};
    }

    std::vector<CompressedPart> decompress(const Tensors& results,
                                           const at::Tensor& gradient) override {
      gradient.zero_();
      gradient.view(-1).index_add_(0, results[0], results[1] * scale_);
      return {};
    }

   private:
    at::Tensor left_over_;
    double scale_ = 1.0;
  };
};

at::Tensor orthonormal(const at::Tensor& matrix) {
  return std::get<0>(at::linalg_qr(matrix));
}

/// Low rank, by one power iteration a step that begins with the last one's factor (PowerSGD: Vogels
/// et al., 2019). Two rounds, the second made of the first's result.
class LowRank final : public ronde::Compression {
 public:
  std::string description() const override { return "rank 2"; }
  std::unique_ptr<CompressedGradient> make(const std::string&,
                                           const at::Tensor& parameter) override {
    if (parameter.dim() != 2) return nullptr;
    return std::make_unique<State>(parameter.size(1));
  }

 private:
  class State final : public CompressedGradient {
   public:
    explicit State(std::int64_t columns) : q_(normal({columns, 2}, 77)) {}

    std::vector<CompressedPart> compress(const at::Tensor& gradient,
                                         const GradientReduction&) override {
      own_ = gradient.clone();
      return {{.tensor = own_.matmul(q_)}};
    }

    std::vector<CompressedPart> decompress(const Tensors& results,
                                           const at::Tensor& gradient) override {
      if (own_.defined()) {
        p_ = orthonormal(results.front());
        return {{.tensor = std::exchange(own_, {}).t().matmul(p_)}};
      }
      q_ = results.front().clone();
      gradient.copy_(p_.matmul(q_.t()));
      return {};
    }

   private:
    at::Tensor own_;
    at::Tensor p_;
    at::Tensor q_;
  };
};

/// Only the elements of a mask travel, those with an even place.
class Masked final : public ronde::Compression {
 public:
  std::string description() const override { return "even places"; }
  std::unique_ptr<CompressedGradient> make(const std::string&, const at::Tensor&) override {
    return std::make_unique<State>();
  }

 private:
  class State final : public CompressedGradient {
   public:
    std::vector<CompressedPart> compress(const at::Tensor& gradient,
                                         const GradientReduction&) override {
      return {{.tensor = gradient.reshape({-1}).slice(0, 0, std::nullopt, 2).clone()}};
    }
    std::vector<CompressedPart> decompress(const Tensors& results,
                                           const at::Tensor& gradient) override {
      gradient.zero_();
      gradient.view(-1).slice(0, 0, std::nullopt, 2).copy_(results.front());
      return {};
    }
  };
};

/// What each step's gradient has to be.
using Oracle = std::function<at::Tensor(const Tensors& of_ranks)>;

void check_steps(const std::shared_ptr<ronde::Compression>& compression, const Oracle& oracle) {
  Matrix matrix;
  DistributedOptimizer optimizer(matrix.sgd, matrix.names, {.compression = compression});
  for (int step = 0; step < 200; ++step) {
    CAPTURE(step);
    optimizer.zero_grad();
    matrix.backward(gradient_of(step, ronde::rank()));
    optimizer.synchronize();
    CHECK(near(matrix.p.grad(), oracle(by_rank([&](int rank) { return gradient_of(step, rank); })),
               1e-10));
    optimizer.step();
  }
  CHECK(same_on_all_ranks(matrix.p));
}

/// What TopK does with the gradients of all ranks, in one process.
class TopKOracle {
 public:
  /// Undefined gradients are those of ranks that have none.
  at::Tensor operator()(const Tensors& of_ranks) {
    at::Tensor sum = at::zeros({24}, at::kDouble);
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      if (!of_ranks[rank].defined()) continue;
      const at::Tensor wanted = left_over_[rank] + of_ranks[rank];
      const auto [places, values] = largest(wanted);
      const at::Tensor sent = at::zeros({24}, at::kDouble).index_copy(0, places, values);
      left_over_[rank] = wanted - sent.view({6, 4});
      sum = sum + sent;
    }
    return sum.view({6, 4}) / static_cast<double>(of_ranks.size());
  }

 private:
  Tensors left_over_ = by_rank([](int) { return at::zeros({6, 4}, at::kDouble); });
};

/// The gradient of a matrix of this type, where each rank's was `gradient`.
at::Tensor reduced(const at::Tensor& gradient,
                   const std::shared_ptr<ronde::Compression>& compression) {
  Matrix matrix(gradient.scalar_type());
  DistributedOptimizer optimizer(matrix.sgd, matrix.names, {.compression = compression});
  matrix.backward(gradient);
  optimizer.synchronize();
  return matrix.p.grad();
}

}  // namespace

TEST_CASE("half-precision gradients are those that LibTorch's conversions give", "[n2]") {
  for (const at::ScalarType wire : {at::kHalf, at::kBFloat16}) {
    const auto compression =
        wire == at::kHalf ? ronde::Compression::fp16() : ronde::Compression::bf16();
    const at::Tensor sum = at::stack(by_rank([&](int rank) {
                             return gradient_of(0, rank, at::kFloat).to(wire).to(at::kFloat);
                           })).sum(0);
    const at::Tensor expected = (sum / ronde::size()).to(wire).to(at::kFloat);
    CHECK(torch::equal(reduced(gradient_of(0, ronde::rank(), at::kFloat), compression), expected));
    CHECK_FALSE(torch::equal(expected, sum / ronde::size()));
  }
}

TEST_CASE("what is too large for fp16 becomes infinite, and not for bf16", "[n2]") {
  const at::Tensor large = at::full({6, 4}, 1e6);
  CHECK(at::isinf(reduced(large, ronde::Compression::fp16())).all().item<bool>());
  CHECK_FALSE(at::isinf(reduced(large, ronde::Compression::bf16())).any().item<bool>());
}

TEST_CASE("compression leaves half-precision parameters as they are", "[n2]") {
  // Not to be represented as fp16.
  const at::Tensor large = at::full({6, 4}, 1e8, at::kBFloat16);
  CHECK(at::isfinite(reduced(large, ronde::Compression::fp16())).all().item<bool>());
}

TEST_CASE("compressed gradients are half the bytes on the wire", "[n2]") {
  const auto bytes_of = [](const std::shared_ptr<ronde::Compression>& compression) {
    Matrix matrix(at::kFloat);
    DistributedOptimizer optimizer(
        matrix.sgd, matrix.names,
        {.name = "wire", .gradient_views = false, .compression = compression});
    const std::uint64_t before = counted("execution", "bytes");
    matrix.backward(gradient_of(0, ronde::rank(), at::kFloat));
    optimizer.step();
    return counted("execution", "bytes") - before;
  };
  const std::uint64_t plain = bytes_of(nullptr);
  const std::uint64_t uncompressed_before = counted("execution", "uncompressed_bytes");
  CHECK(plain == 24 * sizeof(float));
  CHECK(bytes_of(ronde::Compression::bf16()) == plain / 2);
  CHECK(counted("execution", "uncompressed_bytes") - uncompressed_before >= plain);
}

TEST_CASE("a compressor of the program's sends the largest elements, and remembers the rest") {
  check_steps(std::make_shared<TopK>(), TopKOracle());
}

TEST_CASE("a compressor of the program's may need several rounds", "[n1][n2][n3]") {
  at::Tensor q = normal({4, 2}, 77);
  check_steps(std::make_shared<LowRank>(), [&](const Tensors& of_ranks) {
    const at::Tensor mean = at::stack(of_ranks).mean(0);
    const at::Tensor p = orthonormal(mean.matmul(q));
    q = mean.t().matmul(p);
    return p.matmul(q.t());
  });
}

TEST_CASE("a compressor of the program's sends what a mask leaves", "[n2]") {
  check_steps(std::make_shared<Masked>(), [](const Tensors& of_ranks) {
    const at::Tensor mask = at::arange(24).remainder(2).eq(0).view({6, 4});
    return at::stack(of_ranks).mean(0) * mask;
  });
}

TEST_CASE("a rank without a gradient adds nothing to a compressed one", "[n2][n3]") {
  const std::vector<std::shared_ptr<ronde::Compression>> all = {
      ronde::Compression::bf16(), std::make_shared<TopK>(), std::make_shared<LowRank>(),
      std::make_shared<Masked>()};
  for (const auto& compression : all) {
    CAPTURE(compression->description());
    for (const bool grouped : {false, true}) {
      Matrix matrix;
      const at::Tensor unused = ones_parameter({6, 4});
      torch::optim::SGD sgd({matrix.p, unused}, 1.0);
      matrix.names.insert("unused", unused);
      DistributedOptimizer optimizer(sgd, matrix.names,
                                     {.groups = grouped ? 1 : 0, .compression = compression});
      if (ronde::rank() == 0) matrix.backward(gradient_of(0, 0));
      optimizer.synchronize();
      REQUIRE(matrix.p.grad().defined());
      CHECK_FALSE(unused.grad().defined());
      CHECK(same_on_all_ranks(matrix.p.grad()));
      CHECK(matrix.p.grad().abs().sum().item<double>() > 0);
      CHECK(matrix.p.grad().abs().max().item<double>() <=
            gradient_of(0, 0).abs().max().item<double>() / ronde::size() * 1.5);
      optimizer.step();
    }
  }
}

TEST_CASE("what a compressor has left over waits for a rank's next gradient", "[n2][n3]") {
  Matrix matrix;
  DistributedOptimizer optimizer(matrix.sgd, matrix.names,
                                 {.compression = std::make_shared<TopK>()});
  TopKOracle oracle;
  for (int step = 0; step < 7; ++step) {
    CAPTURE(step);
    // Rank 0 has a gradient in every step, the others in every third.
    const Tensors gradients = by_rank([&](int rank) {
      return rank == 0 || step % 3 == 0 ? gradient_of(step, rank) : at::Tensor();
    });
    optimizer.zero_grad();
    if (mine_of(gradients).defined()) matrix.backward(mine_of(gradients));
    optimizer.synchronize();
    CHECK(near(matrix.p.grad(), oracle(gradients), 1e-12));
    optimizer.step();
  }
}

TEST_CASE("a compression that differs between ranks, or sends nothing, is refused", "[n2]") {
  Matrix matrix;
  const auto own = ronde::rank() == 0 ? ronde::Compression::fp16() : ronde::Compression::bf16();
  check_refused(
      [&] { DistributedOptimizer optimizer(matrix.sgd, matrix.names, {.compression = own}); },
      {"compression bf16", "compression fp16"});

  class Silent final : public ronde::Compression {
   public:
    std::string description() const override { return "silent"; }
    std::unique_ptr<CompressedGradient> make(const std::string&, const at::Tensor&) override {
      struct State final : CompressedGradient {
        std::vector<CompressedPart> compress(const at::Tensor&, const GradientReduction&) override {
          return {};
        }
        std::vector<CompressedPart> decompress(const Tensors&, const at::Tensor&) override {
          return {};
        }
      };
      return std::make_unique<State>();
    }
  };
  DistributedOptimizer optimizer(matrix.sgd, matrix.names,
                                 {.compression = std::make_shared<Silent>()});
  matrix.backward(gradient_of(0, 0));
  check_refused([&] { optimizer.step(); }, {"nothing to send"});
}

}  // namespace ronde_test::compression_test
