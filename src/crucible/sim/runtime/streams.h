// What a launch tells the streams.
#pragma once
#include <string>

namespace csim {

void note_stream_work(const void* stream, const std::string& kernel);

}  // namespace csim
