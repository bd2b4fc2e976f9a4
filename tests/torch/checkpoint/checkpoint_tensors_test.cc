// SPDX-License-Identifier: Apache-2.0
// ronde::Checkpoint: tensors of every layout and dtype, and that a resume changes all or nothing.
#include "tests/torch/checkpoint/training.h"
#include "tests/torch/dtypes.h"
#include "tests/torch/state/objects.h"

namespace ronde_test::checkpoint_tensors_test {

using namespace ronde_test::checkpoints;

namespace {

/// Saves a number and the object as step 1.
template <typename T>
void save(const fs::path& folder, T& object) {
  std::int64_t number = 1;
  ronde::Checkpoint checkpoint(folder, {.overwrite = true});
  checkpoint.add("number", number).add("object", object).save(1);
  checkpoint.wait();
}

/// Checks that `object` cannot be resumed from `saved`, and that what is resumed before it stays.
template <typename T>
void check_not_resumed(T& saved, T& object, const std::vector<std::string>& parts) {
  const SharedFolder folder;
  save(folder.path(), saved);
  std::int64_t number = 7;
  ronde::Checkpoint checkpoint(folder.path());
  checkpoint.add("number", number).add("object", object);
  check_refused([&] { checkpoint.resume(); }, parts);
  CHECK(number == 7);
}

}  // namespace

TEST_CASE("a checkpoint keeps complex, float8, unsigned, conjugated and expanded tensors") {
  for (const bool shared_before : {true, false}) {
    const SharedFolder folder;
    auto saved = heads_of(4, shared_before), net = heads_of(1);
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD sgd(saved->parameters(), options), other(net->parameters(), options);
    at::view_as_real(saved->parameters()[0]).sum().backward();
    sgd.step();
    {
      ronde::Checkpoint checkpoint(folder.path());
      checkpoint.add("net", saved).add("sgd", sgd).save(1);
      checkpoint.wait();
    }
    ronde::Checkpoint checkpoint(folder.path());
    checkpoint.add("net", net).add("sgd", other);
    REQUIRE(checkpoint.resume() == 1);
    CHECK(bytes_of(*net) == bytes_of(*saved));
    CHECK(net->named_buffers()["mask"].stride(0) == 0);
    const auto& state = static_cast<torch::optim::SGDParamState&>(*other.state().begin()->second);
    const at::Tensor ones = at::full({2, 3}, c10::complex<float>(1, 1), at::kComplexFloat);
    CHECK(same_bits(state.momentum_buffer(), ones));
  }
}

TEST_CASE("values that an expanded buffer cannot hold are refused, and change nothing") {
  for (const std::string name : {"mask", "window"}) {
    auto saved = heads_of(2, /*shares=*/false), net = heads_of(5);
    saved->named_buffers()[name].view(-1)[1] = 77;
    check_not_resumed(
        saved, net,
        {"ronde::Checkpoint::resume: impossible on some ranks", "\"object\" cannot be loaded",
         name + " (f32 [", "share memory", "contiguous()"});
    CHECK(bytes_of(*net) == bytes_of(*heads_of(5)));
  }
}

TEST_CASE("tensor variables are resumed where they are, or replaced if they cannot hold it") {
  const SharedFolder folder;
  at::Tensor saved = torch::arange(3, at::kFloat).expand({2, 3});
  const at::Tensor base = torch::zeros({3, 2}, torch::requires_grad());
  at::Tensor leaf = torch::zeros({2, 3}, torch::requires_grad()), view = base.t(),
             computed = leaf * 2, rows = torch::zeros({3}).expand({2, 3}),
             columns = torch::zeros({2, 1}).expand({2, 3}), inferred;
  {
    const c10::InferenceMode inference;
    save(folder.path(), saved);
    inferred = torch::zeros({2, 3});
  }
  save(folder.path(), saved);
  for (at::Tensor* const tensor : {&leaf, &view, &computed, &rows, &columns, &inferred}) {
    const void* const memory = tensor->const_data_ptr();
    std::int64_t number = 0;
    ronde::Checkpoint checkpoint(folder.path());
    checkpoint.add("number", number).add("object", *tensor);
    CHECK(checkpoint.resume() == 1);
    CHECK(torch::equal(*tensor, saved));
    if (tensor != &columns) CHECK(tensor->const_data_ptr() == memory);
  }
  CHECK(leaf.is_leaf());
  CHECK(inferred.is_inference());
  CHECK(rows.stride(0) == 0);
  CHECK(columns.is_contiguous());
}

namespace {

/// Without a default constructor.
struct Fixed : Note {
  explicit Fixed(const std::string& of) : Note{of, at::zeros({1})} {}
};

}  // namespace

TEST_CASE("an object that throws half way on one rank leaves all objects of all ranks alone",
          "[n2][n4]") {
  const std::string fails = "unreadable by a number";
  Fixed saved(fails), object("mine");
  const auto random = [] {
    return bytes_of(at::globalContext().defaultGenerator(at::kCPU).get_state());
  };
  const std::string before = random();
  check_not_resumed(saved, object, {"rank 1: \"object\" cannot be loaded: an exception that does"});
  CHECK(object.text == "mine");
  CHECK(random() == before);
  if (ronde::rank() == 0) object.text = fails;
  check_refused([&] { ronde::broadcast_object(object); }, {"rank 1: "});
  CHECK(object.text == (ronde::rank() == 0 ? fails : "mine"));
}

}  // namespace ronde_test::checkpoint_tensors_test
