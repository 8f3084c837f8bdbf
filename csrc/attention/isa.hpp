#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lamina::attention {

// Instruction sets that there are kernels for, each one containing those before it.
enum class Isa { kBaseline, kAvx2, kAvx512, kAvx512Bf16 };

// What this processor has, from the least to the best.
std::vector<Isa> available_isas();

// The instruction set to use: `name`, or if that is empty $LAMINA_ISA, or the best one of this processor.
// Throws std::invalid_argument for a name that means nothing or that this processor lacks.
Isa choose_isa(std::string_view name);

std::string name_of(Isa isa);

}  // namespace lamina::attention
