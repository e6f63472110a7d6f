"""OpenVINO GenAI on CPUs, in a supervised child process. Only the child imports openvino."""
