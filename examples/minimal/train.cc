// SPDX-License-Identifier: Apache-2.0
#include <ronde/torch.h>

int main() {
  return ronde::main([] {
    torch::manual_seed(ronde::rank());  // every rank has data of its own
    torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
    torch::optim::Adam adam(net->parameters(), 1e-2);
    ronde::DistributedOptimizer optimizer(adam, net->named_parameters());
    ronde::broadcast_parameters(*net, /*root_rank=*/0);
    for (int step = 0; step < 300; ++step) {
      const torch::Tensor x = torch::randn({32, 8});
      optimizer.zero_grad();
      torch::mse_loss(net->forward(x), x.sum(1, true)).backward();  // gradients travel meanwhile
      optimizer.step();                                             // waits for them, then steps
    }
  });
}
