//! Turn any provider error, status, body or stream event into one typed failure
