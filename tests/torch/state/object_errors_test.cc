// SPDX-License-Identifier: Apache-2.0
// What is refused is refused on all ranks, and has changed nothing.

#include "tests/support/processes/file_limit.h"
#include "tests/torch/state/objects.h"

namespace ronde_test::object_errors_test {
namespace {

// Every rank's text of the UsageError is the same, and has this part.
std::string refused_alike(const std::function<void()>& call, const std::string& part) {
  std::string text = check_refused(call, {part});
  CHECK(same_on_all_ranks(text));
  return text;
}

// The same of each function, with that root.
template <typename T>
void refused_by_all(T& object, const std::string& part, int root = 0) {
  refused_alike([&] { ronde::broadcast_object(object, {.root = root}); }, part);
  refused_alike([&] { ronde::allgather_object(object); }, part);
  refused_alike([&] { ronde::gather_object(object, {.root = root}); }, part);
}

// Whatever failed, the next call works.
void check_alive() {
  std::string text = "rank " + std::to_string(ronde::rank());
  ronde::broadcast_object(text, {.root = ronde::size() - 1});
  CHECK(text == "rank " + std::to_string(ronde::size() - 1));
}

}  // namespace

TEST_CASE("roots that differ or do not exist are refused", "[n2][n4]") {
  std::string text = "mine";
  const int last = ronde::size() - 1;
  const std::string of_last = std::to_string(last);
  const auto check = [&](int root, const std::string& part) {
    refused_alike([&] { ronde::broadcast_object(text, {.root = root}); }, part);
    refused_alike([&] { ronde::gather_object(text, {.root = root}); }, part);
  };
  check(ronde::rank() == last ? last : 0,
        "rank " + of_last + " has \"root rank " + of_last + "\" where rank 0 has \"root rank 0\"");
  check(-1, "root_rank is -1");
  check(ronde::size(), "root_rank is " + std::to_string(ronde::size()));
  CHECK(text == "mine");
  check_alive();
}

TEST_CASE("types that differ are refused", "[n2]") {
  std::string text = "mine";
  at::Tensor tensor = at::ones({2});
  const std::string part =
      "objects of one type and shape, on every rank:\n  rank 1 has \"at::Tensor\" where rank 0 has "
      "\"bytes\"";
  if (ronde::rank() == 0) {
    refused_by_all(text, part);
  } else {
    refused_by_all(tensor, part);
  }
  CHECK(text == "mine");
  CHECK(torch::equal(tensor, at::ones({2})));
  check_alive();
}

TEST_CASE("modules that differ are refused by their first difference", "[n2][n4]") {
  const int last = ronde::size() - 1;
  const bool is_last = ronde::rank() == last;
  const std::string who = "rank " + std::to_string(last);
  torch::nn::Linear linear(2, is_last ? 5 : 3);
  const at::Tensor before = linear->weight.detach().clone();
  refused_alike([&] { ronde::broadcast_object(linear); },
                who +
                    " has \"parameter weight: f32 [5, 2] on cpu\" where rank 0 has "
                    "\"parameter weight: f32 [3, 2] on cpu\"");
  CHECK(torch::equal(linear->weight, before));
  torch::nn::Linear sometimes(nullptr);
  if (!is_last) sometimes = torch::nn::Linear(2, 3);
  refused_alike([&] { ronde::broadcast_object(sometimes); }, who + ": the module holder is empty");
  std::shared_ptr<torch::nn::Module> one = torch::nn::Tanh().ptr();
  if (is_last) one = torch::nn::ReLU().ptr();
  refused_alike([&] { ronde::broadcast_object(one); }, "ReLUImpl");
  check_alive();
}

TEST_CASE("an object that one rank cannot write or read changes on none", "[n2][n4]") {
  const int last = ronde::size() - 1;
  Note note{ronde::rank() == last ? "unwritable" : "fine", at::ones({1})};
  refused_by_all(note, "rank " + std::to_string(last) + ": this note cannot be written", last);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"unreadable", "this note cannot be read"},
      {"unreadable without a text", "unknown error"},
      {"unreadable by a number", "an exception that does not derive from std::exception"}};
  for (const auto& [text, told] : rows) {
    note.text = ronde::rank() == 0 ? text : "mine";
    refused_alike([&] { ronde::broadcast_object(note); }, "\n  rank 1: " + told);
    CHECK(note.text == (ronde::rank() == 0 ? text : "mine"));
    const std::string loaded = "rank 1: the object of rank 0 cannot be loaded: " + told;
    refused_alike([&] { ronde::allgather_object(note); }, loaded);
    refused_alike([&] { ronde::gather_object(note, {.root = 1}); }, loaded);
  }
  check_alive();
}

namespace {

// Its own load fails on rank 1, after it has written into the memory of the parameters, if told so,
// or replaced them.
struct FragileImpl : torch::nn::Module {
  FragileImpl(double value, bool writes_in_place) : in_place(writes_in_place) {
    weight = register_parameter("weight", at::full({2, 2}, value));
    repeated = register_buffer("repeated", at::full({1, 2}, value).expand({3, 2}));
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (in_place) {
      const at::NoGradGuard no_grad;
      at::Tensor saved;
      archive.read("weight", saved);
      weight.copy_(saved);
    } else {
      Module::load(archive);
    }
    if (ronde::rank() == 1) throw std::runtime_error("rank 1 does not like it");
  }
  bool in_place;
  at::Tensor weight;
  at::Tensor repeated;  ///< its memory holds one row
};
TORCH_MODULE(Fragile);

}  // namespace

TEST_CASE("a module whose load fails on one rank has its values back on all", "[n2][n4]") {
  for (const bool in_place : {false, true}) {
    CAPTURE(in_place);
    const double own = 5.0 + ronde::rank();
    Fragile module(own, in_place);
    const void* memory = module->weight.const_data_ptr();
    refused_alike([&] { ronde::broadcast_object(module); }, "rank 1: rank 1 does not like it");
    CHECK(torch::equal(module->weight, at::full({2, 2}, own)));
    CHECK(module->weight.const_data_ptr() == memory);
    CHECK((module->repeated == own).all().item<bool>());
    check_alive();
  }
}

TEST_CASE("bytes that do not fit are refused by load_bytes, which changes nothing", "[n1]") {
  torch::nn::Linear linear(2, 3);
  const at::Tensor before = linear->weight.detach().clone();
  const auto check = [&](auto& object, const std::string& bytes, const std::string& part) {
    check_refused([&] { ronde::load_bytes(object, bytes); }, {"ronde::load_bytes: ", part});
  };
  check(linear, ronde::save_bytes(torch::nn::Linear(2, 5)),
        "parameter weight is f32 [3, 2] on cpu here and f32 [5, 2] on cpu in what was");
  check(linear, ronde::save_bytes(at::ones({2})),
        "rank 0: ronde::load_bytes: the bytes are those of \"at::Tensor\", the object is "
        "\"torch::nn::LinearImpl\"");
  check(linear, "garbage", "the 7 bytes were not written by ronde::save_bytes");
  check(linear, "", "the 0 bytes were not written");
  CHECK(torch::equal(linear->weight, before));
  at::Tensor tensor = before;
  check(tensor, "garbage", "not written by ronde::save_bytes");
  check(tensor, ronde::save_bytes(Tensors{before}),
        "the object is \"at::Tensor\". Load them into an object of the type");
  CHECK(tensor.is_same(before));
  torch::optim::Adam adam(linear->parameters(), 0.5);
  check(adam, ronde::save_bytes(linear), "torch::optim::Adam");
  const torch::optim::AdamW adamw(linear->parameters(), 0.25);
  check(adam, ronde::save_bytes(adamw), "those of \"torch::optim::AdamW\"");
  CHECK(adam.param_groups()[0].options().get_lr() == 0.5);
  torch::nn::Linear none(nullptr);
  check(none, ronde::save_bytes(linear), "the module holder is empty");
  check_refused([&] { ronde::save_bytes(none); }, {"the module holder is empty"});
}

namespace {

// Of `object`, which saved as it is has `bytes`: no part of them, and none with a bit changed,
// loads.
template <typename T>
void check_damaged(T& object) {
  const std::string bytes = ronde::save_bytes(object);
  const auto check_damage_seen = [&](const std::string& damaged) {
    check_refused([&] { ronde::load_bytes(object, damaged); }, {"ronde::save_bytes"});
    CHECK(ronde::save_bytes(object) == bytes);
  };
  const std::size_t step = bytes.size() / 16 + 1;
  for (std::size_t at = 0; at < bytes.size(); at += at < 64 ? 5 : step) {
    CAPTURE(at, bytes.size());
    check_damage_seen(bytes.substr(0, at));
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    check_damage_seen(flipped);
  }
  check_damage_seen(bytes.substr(0, bytes.size() - 1));
  check_damage_seen(bytes + '\0');
  ronde::load_bytes(object, bytes);
  CHECK(ronde::save_bytes(object) == bytes);
}

}  // namespace

TEST_CASE("bytes that are lost or changed are refused by load_bytes", "[n1]") {
  std::string text = "plain bytes";
  check_damaged(text);
  at::Tensor tensor = normal({5, 4}, 1);
  check_damaged(tensor);
  Tensors list = {tensor, at::Tensor(), at::ones({2}, at::kLong)};
  check_damaged(list);
  c10::IValue value(std::vector<double>{1, 2});
  check_damaged(value);
  torch::nn::Linear linear(2, 3);
  check_damaged(linear);
  torch::optim::SGD sgd(linear->parameters(), torch::optim::SGDOptions(0.5).momentum(0.5));
  check_damaged(sgd);
}

TEST_CASE("a rank without memory for an object makes all refuse it", "[n2][own]") {
  use_ronde();
  check_alive();
  const std::size_t size = std::size_t{GENERATE(32U, 256U)} << 20;
  std::string object(ronde::rank() == 0 ? size : 1, 'x');
  {
    std::optional<ronde::test::MemoryLimit> little;
    if (ronde::rank() == 1) little.emplace(size / 4);
    check_refused([&] { ronde::broadcast_object(object); },
                  {"rank 1: no memory for " + std::to_string(size) + " bytes"});
    check_refused([&] { ronde::allgather_object(object); }, {"rank 1: "});
    check_refused([&] { ronde::gather_object(object, {.root = 1}); }, {"rank 1: "});
  }
  CHECK(object.size() == (ronde::rank() == 0 ? size : 1));
  check_alive();
}

}  // namespace ronde_test::object_errors_test
