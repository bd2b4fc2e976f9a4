// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/support.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <sstream>

#include "tests/support/processes/temporary_folder.h"

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

using Digest = std::size_t;

/// A place for each rank in memory that they all have mapped.
class SharedDigests {
 public:
  SharedDigests() {
    REQUIRE(ronde::local_size() == ronde::size());
    REQUIRE(ronde::size() <= static_cast<int>(kMaxRanks));
    // Only the file's name travels by Ronde: were it wrong, the ranks would not meet.
    const ronde::test::TemporaryFolder folder;
    std::string path = folder / "digests";
    if (ronde::rank() == 0) map(path, O_CREAT | O_RDWR);
    if (ronde::rank() == 0) initialize();
    ronde::broadcast_object(path);
    if (ronde::rank() != 0) map(path, O_RDWR);
    meet();  // before rank 0 removes the folder
  }

  bool are_equal(Digest mine) {
    memory_->digests.at(static_cast<std::size_t>(ronde::rank())) = mine;
    meet();
    bool equal = true;
    for (int rank = 0; rank < ronde::size(); ++rank) {
      equal = equal && memory_->digests.at(static_cast<std::size_t>(rank)) == memory_->digests[0];
    }
    meet();  // before the next one is written
    return equal;
  }

 private:
  static constexpr std::size_t kMaxRanks = 64;
  struct Memory {
    pthread_barrier_t barrier;
    std::array<Digest, kMaxRanks> digests;
  };

  void map(const std::string& path, int flags) {
    const int file = open(path.c_str(), flags, 0600);
    REQUIRE(file >= 0);
    REQUIRE(ftruncate(file, sizeof(Memory)) == 0);
    void* const mapped = mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    REQUIRE(mapped != MAP_FAILED);
    memory_ = static_cast<Memory*>(mapped);
  }

  void initialize() {
    pthread_barrierattr_t attributes;
    REQUIRE(pthread_barrierattr_init(&attributes) == 0);
    REQUIRE(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    const auto ranks = static_cast<unsigned>(ronde::size());
    REQUIRE(pthread_barrier_init(&memory_->barrier, &attributes, ranks) == 0);
  }

  /// Without a time limit: the watchdog names a case whose ranks do not meet.
  void meet() { pthread_barrier_wait(&memory_->barrier); }

  Memory* memory_ = nullptr;
};

}  // namespace

void use_ronde() {
  static const Session session;
}

std::string thrown_text(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
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

void check_contains(const std::string& text, const std::vector<std::string>& parts,
                    std::source_location where) {
  INFO("at " << where.file_name() << ":" << where.line());
  CAPTURE(text);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(text, part));
  }
}

std::string check_refused(const std::function<void()>& function,
                          const std::vector<std::string>& parts, std::source_location where) {
  INFO("at " << where.file_name() << ":" << where.line());
  std::string text = usage_error(function);
  check_contains(text, parts, where);
  return text;
}

bool same_on_all_ranks(const std::string& bytes) {
  static SharedDigests digests;
  return digests.are_equal(std::hash<std::string>()(bytes));
}

bool same_on_all_ranks(const at::Tensor& tensor) {
  std::ostringstream bytes;
  // Bits, so that NaNs and signed zeros count.
  bytes << tensor.dtype() << tensor.sizes() << bytes_of(tensor);
  return same_on_all_ranks(bytes.str());
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  return {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()};
}

at::Tensor flatten(const Tensors& tensors) {
  Tensors parts;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor plain = tensor.detach().resolve_conj();
    const at::Tensor real = plain.is_complex() ? at::view_as_real(plain) : plain;
    parts.push_back(real.reshape({-1}).to(at::kDouble));
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

at::Tensor normal(at::IntArrayRef sizes, std::int64_t seed, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  return at::randn(sizes, generator, at::kDouble).to(dtype);
}

void fill_normal(const Tensors& parameters, std::int64_t seed, double factor) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    parameter.copy_(normal(parameter.sizes(), seed++) * factor);
  }
}

at::Tensor reduced(ReduceOp op, const at::Tensor& stacked) {
  if (op == ReduceOp::Sum) return stacked.sum(0);
  if (op == ReduceOp::Average) return stacked.mean(0);
  if (op == ReduceOp::Min) return stacked.amin(0);
  if (op == ReduceOp::Max) return stacked.amax(0);
  REQUIRE(op == ReduceOp::Product);
  return stacked.prod(0);
}

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.sizes() != b.sizes()) return false;
  return torch::allclose(a.detach().to(at::kDouble), b.detach().to(at::kDouble), tolerance,
                         tolerance);
}

bool equal(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.scalar_type() == y.scalar_type() && torch::equal(x, y);
  });
}

int status_of_child(const std::function<int()>& child) {
  const pid_t process = fork();
  REQUIRE(process >= 0);
  if (process == 0) {
    try {
      _exit(child());
    } catch (...) {
      _exit(99);
    }
  }
  int status = -1;
  CHECK(waitpid(process, &status, 0) == process);
  return status;
}

torch::serialize::InputArchive reread(torch::serialize::OutputArchive& archive) {
  std::stringstream stream;
  archive.save_to(stream);
  torch::serialize::InputArchive written;
  written.load_from(stream);
  return written;
}

}  // namespace ronde_test
