"""Train a recipe by NeMo's conventions: `python scripts/train_nemo.py recipe=quickstart settings.train.updates=100`."""

if __name__ == "__main__":
    from flashreinforce_molt.nemo.train import main  # here: workers that read this file need no NeMo

    main()
