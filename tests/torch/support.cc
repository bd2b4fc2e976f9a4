// SPDX-License-Identifier: Apache-2.0
#include "support.h"

#include <cstdio>
#include <exception>

namespace ronde_test {
namespace {

class Session {
 public:
  Session() { ronde::init(); }
  ~Session() {
    try {
      ronde::shutdown();
    } catch (const std::exception& error) {
      // A case that failed on one rank leaves the others waiting: its own text matters, not this.
      std::fprintf(stderr, "shutdown: %s\n", error.what());
    }
  }
};

}  // namespace

void use_ronde() {
  static const Session session;
}

std::string usage_error(const std::function<void()>& function) {
  try {
    function();
  } catch (const ronde::UsageError& error) {
    return error.what();
  }
  FAIL("no UsageError was thrown");
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool same_on_all_ranks(const at::Tensor& tensor) {
  const at::Tensor mine = tensor.detach().contiguous().reshape({1, -1});
  const at::Tensor all = ronde::allgather(mine);
  // Bytes, so that NaNs and signed zeros count.
  const at::Tensor bytes = all.view(at::kByte);
  return torch::equal(bytes, bytes.slice(0, 0, 1).expand_as(bytes));
}

at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(tensor.detach().reshape({-1}).to(at::kDouble));
  }
  return torch::cat(parts);
}

std::uint64_t counted(const std::string& part, const std::string& name) {
  for (const ronde::StatsGroup& group : ronde::default_runtime().stats()) {
    if (group.part != part) continue;
    for (const auto& [key, value] : group.counters) {
      if (key == name) return value;
    }
  }
  FAIL("no counter " << part << "." << name);
  return 0;
}

at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kDouble).to(dtype);
}

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.sizes() != b.sizes()) return false;
  return torch::allclose(a.detach().to(at::kDouble), b.detach().to(at::kDouble), tolerance,
                         tolerance);
}

}  // namespace ronde_test
