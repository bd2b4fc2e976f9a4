// SPDX-License-Identifier: Apache-2.0
#include "online_model.h"

#include <ronde/torch.h>
#include <ronde/torch/script.h>
#include <torch/script.h>

#include <optional>

namespace {

torch::jit::Module two_layers() {
  torch::jit::Module net("two_layers");
  net.register_parameter("first", torch::full({16, 3}, 0.1, torch::kDouble).requires_grad_(),
                         /*is_buffer=*/false);
  net.register_parameter("bias", torch::linspace(-1, 1, 16, torch::kDouble).requires_grad_(),
                         /*is_buffer=*/false);
  net.register_parameter("second", torch::full({1, 16}, 0.1, torch::kDouble).requires_grad_(),
                         /*is_buffer=*/false);
  net.define(R"(
def forward(self, x):
    return torch.linear(torch.tanh(torch.linear(x, self.first, self.bias)), self.second)
)");
  return net;
}

}  // namespace

class OnlineModel::Impl {
 public:
  Impl(const std::string& name, MPI_Comm communicator, const std::string& script)
      : net_(script.empty() ? two_layers() : torch::jit::load(script)),
        adam_(ronde::named_parameters(net_).values(), torch::optim::AdamOptions(1e-2)) {
    if (communicator == MPI_COMM_NULL) return;
    world_.emplace(name, ronde::InitOptions{.mpi_communicator = MPI_Comm_c2f(communicator)});
    optimizer_.emplace(
        adam_, ronde::named_parameters(net_),
        ronde::DistributedOptimizerOptions{.name = name, .process_set = world_->set()});
    ronde::broadcast_parameters(net_, /*root_rank=*/0, world_->set());
  }

  double train(std::vector<double>& inputs, std::vector<double>& targets) {
    const auto samples = static_cast<std::int64_t>(targets.size());
    const torch::Tensor x = torch::from_blob(inputs.data(), {samples, 3}, torch::kDouble);
    const torch::Tensor y = torch::from_blob(targets.data(), {samples, 1}, torch::kDouble);
    optimizer_ ? optimizer_->zero_grad() : adam_.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net_.forward({x}).toTensor(), y);
    loss.backward();  // gradients travel meanwhile
    optimizer_ ? optimizer_->step() : adam_.step();
    return loss.item<double>();
  }

  std::vector<double> parameters() const {
    std::vector<double> all;
    for (const torch::Tensor& each : ronde::named_parameters(net_).values()) {
      const torch::Tensor flat = each.detach().to(torch::kDouble).contiguous();
      all.insert(all.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    return all;
  }

  void finish() {
    optimizer_.reset();
    if (world_) world_->shutdown();
  }

 private:
  torch::jit::Module net_;
  torch::optim::Adam adam_;
  std::optional<ronde::World> world_;
  std::optional<ronde::DistributedOptimizer> optimizer_;
};

OnlineModel::OnlineModel(const std::string& name, MPI_Comm communicator, const std::string& script)
    : impl_(std::make_unique<Impl>(name, communicator, script)) {}

OnlineModel::~OnlineModel() = default;

double OnlineModel::train(std::vector<double>& inputs, std::vector<double>& targets) {
  return impl_->train(inputs, targets);
}

std::vector<double> OnlineModel::parameters() const {
  return impl_->parameters();
}

void OnlineModel::finish() {
  impl_->finish();
}

void OnlineModel::write_script(const std::string& path) {
  torch::jit::Module net("one_layer");
  net.register_parameter("weight", torch::full({1, 3}, 0.1, torch::kDouble).requires_grad_(),
                         /*is_buffer=*/false);
  net.define("def forward(self, x):\n    return torch.linear(x, self.weight)\n");
  net.save(path);
}
