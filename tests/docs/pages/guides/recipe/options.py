# block


assert Images(Options(size="large")).options.size == "large"
