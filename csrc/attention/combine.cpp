#include "attention/combine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lamina::attention {

void combine(const Attended& a, const Attended& b, const Attended& to, std::size_t rows,
             std::size_t head_dim) {
  for (std::size_t row = 0; row < rows; ++row) {
    const float most = std::max(a.lse[row], b.lse[row]);
    const bool nothing = most == -std::numeric_limits<float>::infinity();
    // Relative to the larger one, so that neither overflows and the larger one never underflows.
    const float weight_a = nothing ? 0.0f : std::exp(a.lse[row] - most);
    const float weight_b = nothing ? 0.0f : std::exp(b.lse[row] - most);
    const float sum = weight_a + weight_b;
    const float share_a = nothing ? 0.0f : weight_a / sum;
    const float share_b = nothing ? 0.0f : weight_b / sum;
    for (std::size_t i = row * head_dim; i < (row + 1) * head_dim; ++i) {
      to.out[i] = a.out[i] * share_a + b.out[i] * share_b;
    }
    to.lse[row] = most + (nothing ? 0.0f : std::log(sum));
  }
}

}  // namespace lamina::attention
