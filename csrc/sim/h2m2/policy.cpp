#include "sim/h2m2/policy.hpp"

#include <stdexcept>

#include "sim/h2m2/policies/policies.hpp"

namespace lamina::h2m2 {

std::unique_ptr<Policy> make_policy(const std::string& name, const Board& board, const Shape& shape,
                                    bool translated, Shares shares) {
  if (name == "greedy") return make_greedy(board, shape, translated);
  if (name == "oracle") return make_oracle(board, shape, translated);
  if (name == "flexgen") return make_flexgen(board, shape, translated, shares);
  if (name == "naive") return make_naive(board, shape, translated);
  if (name == "q-major") return make_major(board, shape, translated, Major::kQkv);
  if (name == "a-major") return make_major(board, shape, translated, Major::kAttention);
  if (name == "f-major") return make_major(board, shape, translated, Major::kFc);
  if (name == "lpddr") return make_lpddr(board, shape);
  if (name == "hierarchical") return make_hierarchical(board, shape);
  if (name == "8-hbm") return make_multi_hbm(board, shape);
  throw std::invalid_argument("unknown mapping policy: " + name);
}

}  // namespace lamina::h2m2
